"""Lines that wait until their first message is handled again: one heap and one timer for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, TypeVar

from .. import machine
from .held_queue import HeldQueue
from .lines import Line

__all__ = ["Rests"]

B = TypeVar("B")
MIN_COMPACTED: Final = 64
"""Number of entries up to which the heap is not compacted."""


class Rests(Generic[B]):
    """The lines that wait until their first message is handled again.

    ``rested``: called with the arguments of ``add`` when the line is due, unless the line was dropped.
    """

    __slots__ = ("_at", "_compacted_at", "_count", "_entries", "_loop", "_rested", "_timer")

    def __init__(self, rested: Callable[[B, HeldQueue, Line], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._rested = rested
        self._entries: list[tuple[float, int, B, HeldQueue, Line]] = []
        """A heap. The number keeps lines from being compared. A line that was dropped leaves its entry behind."""
        self._count = 0
        self._compacted_at = MIN_COMPACTED
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of entries, including those of dropped lines that are not due yet."""
        return len(self._entries)

    def add(self, backlog: B, held: HeldQueue, line: Line) -> None:
        """Watches a line that rests."""
        due = line.rests_until
        assert due is not None
        self._count += 1
        heappush(self._entries, (due, self._count, backlog, held, line))
        if len(self._entries) > self._compacted_at:
            self._entries = [entry for entry in self._entries if entry[4].rests_until == entry[0]]
            heapify(self._entries)
            self._compacted_at = max(MIN_COMPACTED, 2 * len(self._entries))
        if due < self._at:
            self._arm(due)

    def close(self) -> None:
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._due, context=Context())

    def _due(self) -> None:
        self._timer, self._at = None, inf
        now = machine.monotonic()
        while self._entries and self._entries[0][0] <= now:
            due, _, backlog, held, line = heappop(self._entries)
            if line.rests_until == due:
                self._rested(backlog, held, line)
        if self._entries and self._timer is None:
            self._arm(self._entries[0][0])
