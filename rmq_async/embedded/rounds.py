"""Work that a broker repeats at fixed times of its clock, while there is something to do."""

from __future__ import annotations

from collections.abc import Callable

from .clock import Alarm, Clock


class Rounds:
    """Calls a function at fixed times.

    Args:
        run: The function. It returns whether the next round is needed. If not, the rounds pause until ``need``.
    """

    def __init__(self, clock: Clock, interval_ms: int, run: Callable[[], bool]) -> None:
        self._clock = clock
        self._interval = interval_ms
        self._run = run
        self._first = 0
        self._alarm = Alarm(clock, self._ring)

    def start(self, first_ms: int) -> None:
        """Enable the rounds. The first is at ``first_ms``, the others follow at the interval."""
        self._first = first_ms
        self._alarm.start()

    def stop(self) -> None:
        self._alarm.stop()

    def need(self) -> None:
        """Request the next round."""
        late = self._clock.now_ms() - self._first
        self._alarm.by(self._first if late < 0 else self._first + (late // self._interval + 1) * self._interval)

    def _ring(self) -> None:
        if self._run():
            self.need()
