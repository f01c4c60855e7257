"""A circuit breaker, which keeps a broker that refuses messages from being asked for each one."""

from __future__ import annotations

from typing import Final

from .._backoff import Backoff

__all__ = ["FIRST_PAUSE", "LONGEST_PAUSE", "CircuitBreaker"]

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds for which a broker is not asked after its first refusal, and at most after many."""


class CircuitBreaker:
    """The refusals of one broker since the last success. ``error``: that of the last one; None after a success. ``failures``:
    number of those after which the broker was not asked for a while. ``open_until``: monotonic time until which it is not asked.
    ``refused_at``: monotonic time of the last refusal, ``since``: of the first one.
    """

    __slots__ = ("_pauses", "error", "failures", "open_until", "refused_at", "since")

    def __init__(self) -> None:
        self._pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.open_until = 0.0
        self.failures = 0
        self.error: str | None = None
        self.refused_at = self.since = 0.0

    def refused(self, error: str, now: float, *, opens: bool) -> float | None:
        """Notes a refusal. Returns the seconds for which the broker is not asked; None if that is not so, or known already.
        ``opens``: whether other messages are not to be sent to it either."""
        if self.error is None:
            self.since = now
        self.error, self.refused_at = error, now
        if now < self.open_until or not opens:
            return None
        self.failures += 1
        pause = self._pauses.next()
        self.open_until = now + pause
        return pause

    def succeeded(self) -> None:
        if self.error is not None:
            self._pauses.reset()
            self.open_until, self.failures, self.error = 0.0, 0, None
