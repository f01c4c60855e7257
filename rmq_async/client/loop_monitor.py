"""Detects whether an event loop runs its timers: a timer records when it last ran, and any thread may read that time."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Final

from .. import machine

INTERVAL: Final = 1.0
"""Seconds between two runs of the timer."""

LATE_AFTER: Final = 1.0
"""The loop is considered blocked if the timer is more than this many seconds late."""


class LoopMonitor:
    """A timer of ``loop`` that runs from its construction until ``stop``. ``runs`` and ``late`` may be used from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def runs(self) -> bool:
        """Whether the loop is running; also True if it is blocked."""
        return self._loop.is_running() and not self._loop.is_closed()

    def late(self) -> float:
        """Return the seconds by which the timer is late. Return 0.0 if it is not late."""
        return max(0.0, machine.monotonic() - self._ran_at - INTERVAL)

    def _schedule(self) -> asyncio.TimerHandle:
        return self._loop.call_later(INTERVAL, self._run, context=Context())  # its own context: the timer outlives its caller

    def _run(self) -> None:
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()
