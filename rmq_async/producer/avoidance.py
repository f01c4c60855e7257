"""Which brokers a producer leaves alone at the moment: what its two ways of judging them have in common.

``failures.Failures`` judges by attempts that failed, ``faults.Faults`` by the time of each attempt as well. Nothing here knows a
clock: ``now`` is seconds of one that does not go back. A broker that is not in the table is healthy. One that is in it is left
alone for some time; after that it is on trial: it gets one attempt at a time until one shows that it works.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from math import inf
from typing import ClassVar, Final, Generic, TypeVar

__all__ = ["Avoidance", "Suspect"]

MOST_ITEMS: Final = 1024
"""Brokers in one table; the one noted first goes when another comes."""
KEPT: Final = 60.0
"""Seconds after which a broker that is on trial and gets no attempt is forgotten, when another one comes."""


class Suspect:
    """What is held against one broker. Times are of the caller's clock."""

    __slots__ = ("address", "available_from", "noted")

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        """Of its master, when it was first suspected."""
        self.available_from = 0.0
        self.noted = 0.0
        """When the newest fault was noted."""


S = TypeVar("S", bound=Suspect)


class Avoidance(ABC, Generic[S]):
    """The brokers of one producer. ``items``: those that something is held against.

    ``busy``: says whether an attempt on a broker is under way; ``address_of``: where a broker's master is by the newest route.
    ``version`` grows with all that is learnt. ``on_suspect`` is called with each broker that enters the table.
    """

    __slots__ = ("_address_of", "_busy", "items", "on_suspect", "patience", "version")

    measures: ClassVar[bool]
    """Whether it wants the time of each attempt, also of those that are stored."""

    def __init__(
        self,
        busy: Callable[[str], bool] = lambda _: False,
        address_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._busy = busy
        self._address_of = address_of
        self.items: dict[str, S] = {}
        self.patience = inf
        """Seconds that an attempt which is stored may take without being held against its broker."""
        self.version = 0
        self.on_suspect: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {sorted(self.items)}>"

    # -- what attempts show

    @abstractmethod
    def succeeded(self, broker: str, latency: float, now: float) -> None:
        """An attempt of ``latency`` seconds was stored. Called for brokers in ``items``; for all of them where it ``measures``."""

    @abstractmethod
    def failed(self, broker: str, error: BaseException, latency: float, now: float) -> None:
        """An attempt ended with ``error`` after ``latency`` seconds."""

    def chosen(self, broker: str, now: float) -> None:
        """An attempt that was free to choose goes to the broker."""

    def proved(self, broker: str) -> None:
        """The broker is healthy."""
        self.version += 1
        self.items.pop(broker, None)

    def keep(self, named: Callable[[str], bool]) -> None:
        """Forgets brokers that are not ``named``."""
        for broker in [broker for broker in self.items if not named(broker)]:
            self.proved(broker)

    def moved(self, brokers: Collection[str]) -> None:
        """Forgets those of ``brokers`` whose master is elsewhere by now: what is known is of another process."""
        for broker in self.items.keys() & brokers:
            address = self._address_of(broker)
            if address is not None and address != self.items[broker].address:
                self.proved(broker)

    # -- what selecting asks

    def on_trial(self, broker: str, now: float) -> bool:
        """Whether its time is over, and no attempt has shown yet that it works."""
        item = self.items.get(broker)
        return item is not None and now >= item.available_from

    def usable(self, broker: str, now: float) -> bool:
        """Whether it is not left alone, and not on trial with an attempt under way."""
        item = self.items.get(broker)
        return item is None or (now >= item.available_from and not self._busy(broker))

    def avoided(self, brokers: Collection[str], now: float) -> frozenset[str]:
        """Those of ``brokers`` that are not usable."""
        return frozenset([broker for broker in self.items.keys() & brokers if not self.usable(broker, now)])

    def best(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Those of ``brokers`` to choose among: the usable ones; ``brokers`` itself where that is all of them, or none."""
        avoided = self.avoided(brokers, now)
        if not avoided:
            return brokers
        return frozenset(brokers) - avoided or self._of_none(brokers, now)

    def _of_none(self, brokers: Collection[str], now: float) -> Collection[str]:
        """Those to choose among where none is usable."""
        return brokers

    # -- for those who judge

    def _enter(self, broker: str, item: S, now: float) -> S:
        """Puts a broker into the table, which stays bounded."""
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
