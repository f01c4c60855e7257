"""The table of brokers that a producer avoids: the common base of its two policies.

``suspects.FailureTable`` judges brokers by failed attempts, ``fault_table.LatencyTable`` also by the latency of each attempt.
This module reads no clock: ``now`` is seconds of a monotonic clock. A broker outside the table is healthy. A broker in it is
avoided for some time and then on trial: the choice of queues gives it one attempt at a time until one succeeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import inf
from typing import Final, Generic, TypeVar

MOST_ITEMS: Final = 1024
"""Maximum number of brokers in one table; the oldest entry is dropped for a new one."""
KEPT: Final = 60.0
"""An entry that has been on trial for more seconds than this is removed when another broker enters the table."""


class Suspect:
    """The entry of one broker.

    Args:
        address: Address of its master when the entry was made. Times are of the caller's clock.

    Attributes:
        available_from: End of the time for which it is avoided.
        noted: Time of the newest fault.
    """

    __slots__ = ("address", "available_from", "noted")

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.available_from = 0.0
        self.noted = 0.0


S = TypeVar("S", bound=Suspect)


class Avoidance(ABC, Generic[S]):
    """The brokers that one producer avoids.

    Args:
        busy: Whether an attempt on the broker is in flight or connects.
        address_of: Its master's address in the newest route.

    Attributes:
        items: The entries, by broker name.
        patience: Seconds that a successful attempt may take without counting as a fault.
        version: Rises when the table changes.
        on_suspect: Called with each broker that enters the table.
    """

    __slots__ = ("_address_of", "_busy", "items", "measures", "on_suspect", "patience", "version")

    def __init__(
        self,
        busy: Callable[[str], bool] = lambda _: False,
        address_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._busy = busy
        self._address_of = address_of
        self.items: dict[str, S] = {}
        self.measures = False
        """Whether ``succeeded`` must be called for every attempt; otherwise only for brokers in ``items``."""
        self.patience = inf
        self.version = 0
        self.on_suspect: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {sorted(self.items)}>"

    # -- reports of attempts

    @abstractmethod
    def succeeded(self, broker: str, latency: float, now: float) -> None:
        """Take the report of an attempt that was stored after ``latency`` seconds (see ``measures``)."""

    @abstractmethod
    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        """Take the report of an attempt that ended with ``error`` after ``latency`` seconds."""

    def chosen(self, broker: str, now: float) -> None:
        """Take the report that an attempt which could choose its broker goes to this one."""

    def proved(self, broker: str) -> None:
        """Remove the broker from the table: it is healthy."""
        self.version += 1
        self.items.pop(broker, None)

    def keep(self, named: Callable[[str], bool]) -> None:
        """Remove brokers for which ``named(broker)`` is false."""
        for broker in [broker for broker in self.items if not named(broker)]:
            self.proved(broker)

    def moved(self, brokers: Collection[str]) -> None:
        """Remove the ``brokers`` whose master has another address now: another process had the faults."""
        for broker in [broker for broker in self.items if broker in brokers]:
            address = self._address_of(broker)
            if address is not None and address != self.items[broker].address:
                self.proved(broker)

    # -- queries of queue selection

    def on_trial(self, broker: str, now: float) -> bool:
        """Return whether the broker is in the table and the time for which it is avoided is over."""
        item = self.items.get(broker)
        return item is not None and now >= item.available_from

    def usable(self, broker: str, now: float) -> bool:
        """Return whether the broker is neither avoided nor on trial with an attempt in flight."""
        item = self.items.get(broker)
        return item is None or (now >= item.available_from and not self._busy(broker))

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        """Return the ``brokers`` that are not usable."""
        return frozenset([broker for broker in self.items.keys() & brokers if not self.usable(broker, now)])

    def best(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Return the usable ``brokers``: ``brokers`` itself if all are usable, the result of ``_of_none`` if none is."""
        avoided = self.avoided(brokers, now)
        if not avoided:
            return brokers
        return frozenset(brokers) - avoided or self._of_none(brokers, now)

    def _of_none(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Return the brokers to choose among if none is usable."""
        return brokers

    # -- for subclasses

    def _enter(self, broker: str, item: S, now: float) -> S:
        """Add a broker to the table, and remove old entries."""
        if len(self.items) >= MOST_ITEMS:
            del self.items[next(iter(self.items))]
        for name in [name for name, other in self.items.items() if now - other.available_from > KEPT]:
            del self.items[name]
        item.address = self._address_of(broker)
        self.items[broker] = item
        self.version += 1
        if self.on_suspect is not None:
            self.on_suspect(broker)
        return item
