"""The monotonic clock of one machine, which may run faster or slower than the time of the simulation."""

from __future__ import annotations

from .scheduler import Scheduler


class MonotonicClock:
    """The monotonic clock of a machine.

    Args:
        booted: Time of the clock when the simulation began, in seconds.
        drift: Seconds that it gains in each second.
    """

    def __init__(self, scheduler: Scheduler, *, booted: float = 0.0, drift: float = 0.0) -> None:
        self.drift = drift
        self._scheduler = scheduler
        self._base = booted
        self._since = 0
        self._pace = (1.0 + drift) / 1e9
        """Seconds that the clock moves in a nanosecond of the simulation."""

    def time(self) -> float:
        """Return the time of the clock in seconds."""
        return self._base + (self._scheduler.now - self._since) * self._pace

    def seconds(self, at: int) -> float:
        """Return what the clock shows, in seconds, at a time of the simulation in nanoseconds."""
        return self._base + (at - self._since) * self._pace

    def at(self, seconds: float) -> int:
        """Return the time of the simulation, in nanoseconds, from which on the clock shows at least ``seconds``."""
        at = self._since + int((seconds - self._base) / self._pace)
        return at if self._base + (at - self._since) * self._pace >= seconds else at + 1

    def set_drift(self, drift: float) -> float:
        """Change the speed of the clock from now on; its time does not jump.

        Return the factor by which the wait until it shows a given later time grows: 2.0 where it runs half as fast as before.
        """
        before = self._pace
        self._base, self._since = self.time(), self._scheduler.now
        self.drift, self._pace = drift, (1.0 + drift) / 1e9
        return before / self._pace
