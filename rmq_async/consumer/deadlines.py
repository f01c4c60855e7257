"""Deadlines of handler calls: one timer for all of them, which looks at the calls that run, instead of an entry for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from math import inf
from typing import Final

from .. import machine
from .delivery import Delivery

__all__ = ["CallDeadlines"]

LEAST_PAUSE: Final = 0.005
"""Least seconds from a look at the calls to the one for which it sets the timer: a look takes longer, the more calls run."""


class CallDeadlines:
    """The deadlines of calls. ``running``: all running calls. ``expired``: called with each call whose deadline passes while
    its handler runs."""

    # The timer is set for the earliest deadline that a look has found or ``look_at`` was called with. A call that begins later
    # has an earlier one only if its timeout is shorter: so a call costs a comparison.
    __slots__ = ("_expired", "_loop", "_running", "_timer", "moved", "next_look")

    def __init__(self, running: Iterable[Delivery], expired: Callable[[Delivery], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._running = running
        self._expired = expired
        self.next_look = inf
        """Monotonic time for which the timer is set; ``inf`` without one."""
        self._timer: asyncio.TimerHandle | None = None
        self.moved = self._moved
        """The function for ``Delivery.moved``: called when a deadline has moved, from any thread."""

    def look_at(self, deadline: float) -> None:
        """Checks the calls at ``deadline`` at the latest."""
        if deadline < self.next_look:
            self._arm(deadline)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _moved(self, delivery: Delivery) -> None:
        self._loop.call_soon_threadsafe(self._look_again, delivery, context=Context())

    def _look_again(self, delivery: Delivery) -> None:
        if delivery.state == "running" and delivery.deadline is not None:
            self.look_at(delivery.deadline)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.next_look = at
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._due, context=Context())

    def _due(self) -> None:
        self._timer, self.next_look = None, inf
        now, next_at = machine.monotonic(), inf
        over: list[tuple[float, Delivery]] = []
        for delivery in self._running:
            deadline = delivery.deadline
            if deadline is None or delivery.state != "running" or delivery.timed_out:
                continue
            if deadline <= now:
                over.append((deadline, delivery))
            elif deadline < next_at:
                next_at = deadline
        for _, delivery in sorted(over, key=_deadline):
            self._expired(delivery)
        if next_at < inf:
            self._arm(max(next_at, now + LEAST_PAUSE))


def _deadline(entry: tuple[float, Delivery]) -> float:
    return entry[0]
