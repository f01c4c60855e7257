"""Shows any thread whether an event loop runs its timers: one timer records when it ran last."""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Final

from .. import machine

__all__ = ["INTERVAL", "LATE_AFTER", "LoopMonitor"]

INTERVAL: Final = 1.0
"""Seconds between two runs of the timer."""

LATE_AFTER: Final = 1.0
"""Seconds by which the timer may be late in a busy loop."""


class LoopMonitor:
    """The timer of the loop that makes it, until ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def runs(self) -> bool:
        """Whether the loop runs; its timers may be late."""
        return self._loop.is_running() and not self._loop.is_closed()

    def late(self) -> float:
        """Seconds by which the timer is late."""
        return max(0.0, machine.monotonic() - self._ran_at - INTERVAL)

    def _schedule(self) -> asyncio.TimerHandle:
        return self._loop.call_later(INTERVAL, self._run, context=Context())  # its own context: the timer outlives its caller

    def _run(self) -> None:
        self._ran_at = machine.monotonic()
        self._timer = self._schedule()
