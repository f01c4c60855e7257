"""Shows any thread whether an event loop runs its timers: one timer records when it ran last."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Final

from .. import machine

INTERVAL: Final = 1.0
"""Seconds between two runs of the timer."""

LATE_AFTER: Final = 1.0
"""Seconds by which the timer may be late before the loop counts as blocked."""


class LoopMonitor:
    """The timer of ``loop``; runs from the construction until ``stop``. ``runs`` and ``late`` may be read from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def runs(self) -> bool:
        """Whether the loop runs, also if it is blocked."""
        return self._loop.is_running() and not self._loop.is_closed()

    def late(self) -> float:
        """Return the seconds by which the timer is late; 0.0 if it is not."""
        return max(0.0, machine.monotonic() - self._ran_at - INTERVAL)

    def _schedule(self) -> asyncio.TimerHandle:
        return self._loop.call_later(INTERVAL, self._run, context=Context())  # its own context: the timer outlives its caller

    def _run(self) -> None:
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()
