"""A table of the brokers that a producer avoids: the common base class of two policies.

``suspects.FailureTable`` judges brokers by failed attempts. ``fault_table.LatencyTable`` judges them also by the latency of each
attempt. This module reads no clock: ``now`` is in seconds of a monotonic clock. A broker that is not in the table is healthy. A
broker in the table is avoided for some time, and is then on trial: it gets one attempt at a time until one succeeds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import inf
from typing import Final, Generic, TypeVar

MOST_ITEMS: Final = 1024
"""Maximum number of brokers in one table. The oldest entry is dropped for a new one."""
KEPT: Final = 60.0
"""Seconds on trial after which an entry is removed when another broker is added to the table."""


class Suspect:
    """The table entry of one broker. Times are those of the caller's clock.

    Args:
        address: The address of the broker's master when the entry was made.

    Attributes:
        available_from: The end of the time for which the broker is avoided.
        noted: The time of the last fault.
    """

    __slots__ = ("address", "available_from", "noted")

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.available_from = 0.0
        self.noted = 0.0


S = TypeVar("S", bound=Suspect)


class Avoidance(ABC, Generic[S]):
    """The table of brokers that one producer avoids.

    Args:
        busy: Returns whether an attempt on a broker is in flight or is connecting.
        address_of: Returns the address of a broker's master in the newest route.

    Attributes:
        items: The entries, by broker name.
        patience: Seconds that a successful attempt may take without counting as a fault.
        version: A number that grows when the table changes.
        on_suspect: Called with each broker that is added to the table.
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
        """Whether ``succeeded`` must be called for every attempt. If False, it must be called only for brokers in ``items``."""
        self.patience = inf
        self.version = 0
        self.on_suspect: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {sorted(self.items)}>"

    # -- reports of attempts

    @abstractmethod
    def succeeded(self, broker: str, latency: float, now: float) -> None:
        """Report an attempt whose message was stored after ``latency`` seconds (see ``measures``)."""

    @abstractmethod
    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        """Report an attempt that ended with ``error`` after ``latency`` seconds."""

    def chosen(self, broker: str, now: float) -> None:
        """Report that an attempt goes to ``broker``, which was chosen among several brokers."""

    def proved(self, broker: str) -> None:
        """Remove a broker from the table, because it is healthy."""
        self.version += 1
        self.items.pop(broker, None)

    def keep(self, named: Callable[[str], bool]) -> None:
        """Remove the brokers for which ``named(broker)`` is false."""
        for broker in [broker for broker in self.items if not named(broker)]:
            self.proved(broker)

    def moved(self, brokers: Collection[str]) -> None:
        """Remove those of ``brokers`` whose master now has another address, because their faults belong to another process."""
        for broker in [broker for broker in self.items if broker in brokers]:
            address = self._address_of(broker)
            if address is not None and address != self.items[broker].address:
                self.proved(broker)

    # -- queries of queue selection

    def on_trial(self, broker: str, now: float) -> bool:
        """Return whether the broker is in the table and the time for which it was avoided is over."""
        item = self.items.get(broker)
        return item is not None and now >= item.available_from

    def usable(self, broker: str, now: float) -> bool:
        """Return whether the broker is neither avoided nor on trial with an attempt in flight."""
        item = self.items.get(broker)
        return item is None or (now >= item.available_from and not self._busy(broker))

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        """Return those of ``brokers`` that are not usable."""
        return frozenset([broker for broker in self.items.keys() & brokers if not self.usable(broker, now)])

    def best(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Return the usable brokers.

        Return ``brokers`` itself if all of them are usable. If none is usable, return the result of ``_of_none``.
        """
        avoided = self.avoided(brokers, now)
        if not avoided:
            return brokers
        return frozenset(brokers) - avoided or self._of_none(brokers, now)

    def _of_none(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Return the brokers from which to choose if no broker is usable."""
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
