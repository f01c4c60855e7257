"""Whether an event loop runs its timers, as seen from any thread: one timer writes down when it ran last."""

from __future__ import annotations

import asyncio
from contextvars import Context
from time import monotonic
from typing import Final

__all__ = ["INTERVAL", "LATE_AFTER", "Pulse"]

INTERVAL: Final = 1.0
"""Seconds between two runs of the timer."""

LATE_AFTER: Final = 1.0
"""Seconds by which it may be late in a loop that is merely busy."""


class Pulse:
    """Begins with the loop that makes it, and ends with ``stop``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._beaten_at = monotonic()
        self._timer = self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    @property
    def runs(self) -> bool:
        """Whether the loop runs at all; its timers may be late."""
        return self._loop.is_running() and not self._loop.is_closed()

    def late(self) -> float:
        """Seconds by which the timer is late."""
        return max(0.0, monotonic() - self._beaten_at - INTERVAL)

    def _schedule(self) -> asyncio.TimerHandle:
        return self._loop.call_later(INTERVAL, self._beat, context=Context())  # its own context: the timer outlives its caller

    def _beat(self) -> None:
        self._beaten_at = monotonic()
        self._timer = self._schedule()
