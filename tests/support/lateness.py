"""How late a loop of real time was, and when: time that a busy machine took from a call, and that the call cannot be held to."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from time import monotonic
from types import TracebackType
from typing import Self

__all__ = ["Lateness"]

STEP = 0.002
"""Seconds between two looks."""
COUNTED = 0.003
"""Seconds of lateness from which a look counts: a timer of a quiet uvloop is up to a millisecond late."""


class Lateness:
    """Measures the running loop within ``async with``."""

    def __init__(self) -> None:
        self._due: list[float] = []
        """When each late look was due,"""
        self._made: list[float] = []
        """and when it was made."""
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        await asyncio.sleep(2 * STEP)  # the look that was due when the last call ended
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            due = monotonic() + STEP
            await asyncio.sleep(STEP)
            made = monotonic()
            if made - due >= COUNTED:
                self._due.append(due)
                self._made.append(made)

    def between(self, start: float, end: float) -> float:
        """Returns the seconds from ``start`` to ``end`` of ``time.monotonic`` in which a look was due and not made."""
        first, last = bisect_right(self._made, start), bisect_left(self._due, end)
        return sum(min(self._made[each], end) - max(self._due[each], start) for each in range(first, last))

    def own(self, start: float, end: float) -> float:
        """Returns the seconds from ``start`` to ``end`` that are left without the lost ones."""
        return end - start - self.between(start, end)
