"""Deadlines of handler calls: one table and one timer for all of them, instead of a timer per call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from weakref import ReferenceType, ref

from .. import machine
from .delivery import Delivery

__all__ = ["CallDeadlines"]

MIN_COMPACTED = 64
"""Compact the heap only above this number of entries."""


class CallDeadlines:
    """``expired``: called with each delivery whose deadline has come while its handler runs."""

    __slots__ = ("_at", "_count", "_entries", "_expired", "_loop", "_running", "_timer")

    def __init__(self, expired: Callable[[Delivery], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._expired = expired
        self._entries: list[tuple[float, int, ReferenceType[Delivery]]] = []
        """A heap. The number keeps calls from being compared. One that has ended leaves its entry behind, not its message."""
        self._count = 0
        self._running = 0
        self._at = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, delivery: Delivery) -> None:
        """Watches a call; ``remove`` is to be called when its handler has ended."""
        self._running += 1
        delivery.moved = self._moved
        if delivery.deadline is not None:
            self._push(delivery, delivery.deadline)

    def remove(self) -> None:
        """Counts the end of one watched call; its entry goes when it is due, or when most entries are of ended calls."""
        self._running -= 1
        if len(self._entries) > MIN_COMPACTED + 2 * self._running:
            self._entries = [entry for entry in self._entries if _runs(entry[2]())]
            heapify(self._entries)

    def close(self) -> None:
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _moved(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._watch_anew, delivery, context=Context())

    def _watch_anew(self, delivery: Delivery) -> None:
        if delivery.state == "running" and delivery.deadline is not None and delivery.deadline < delivery.watched:
            self._push(delivery, delivery.deadline)

    def _push(self, delivery: Delivery, at: float) -> None:
        self._count += 1
        delivery.watched = at
        heappush(self._entries, (at, self._count, ref(delivery)))
        if at < self._at:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._due, context=Context())

    def _due(self) -> None:
        self._timer, self._at = None, float("inf")
        now = machine.monotonic()
        while self._entries and self._entries[0][0] <= now:
            at, _, entry = heappop(self._entries)
            delivery = entry()
            if (
                delivery is None
                or delivery.state != "running"
                or delivery.timed_out
                or delivery.deadline is None
                or at != delivery.watched
            ):
                continue
            if delivery.deadline > now:  # extended meanwhile
                self._push(delivery, delivery.deadline)
            else:
                self._expired(delivery)
        if self._entries and self._timer is None:
            self._arm(self._entries[0][0])


def _runs(delivery: Delivery | None) -> bool:
    return delivery is not None and delivery.state == "running"
