"""Derives a broker's clock from its answers. It does no I/O and reads no clock."""

# A broker holds a pop until the time of birth in the request plus the poll time, by its own clock, and ends a lease by it too.
# A client whose clock differs would be held too long, or answered at once again and again, and would take messages for expired.
# So nothing here compares a time of a broker with one of this machine: each answer to a pop names the broker's time at which it
# popped, which lies between the request and the answer by the monotonic clock of this process.

from __future__ import annotations

from math import inf
from typing import Final

__all__ = ["BrokerClock"]

WINDOW: Final = 60.0
"""Seconds of a window. Answers of the current and the last window count: clocks drift, and are set."""
SET_BACK: Final = 50.0
"""Milliseconds by which a broker's time may lie before the earliest time that former answers allow; beyond that its clock
counts as set back."""


class BrokerClock:
    """The clock of one broker. Times of the broker are epoch ms; times of this process are monotonic seconds."""

    __slots__ = ("_at", "_offset", "_older")

    def __init__(self) -> None:
        self._offset = self._older = inf
        """The smallest differences, in ms, between this process's time of an answer and the broker's time in the answer: that
        of the current window, and that of the window before."""
        self._at = 0.0
        """The time at which the current window began."""

    @property
    def is_known(self) -> bool:
        return min(self._offset, self._older) < inf

    def note(self, broker_ms: int, sent: float, arrived: float) -> None:
        """Reads an answer. ``broker_ms``: the broker's time at some moment between the request and the answer."""
        if broker_ms <= 0:
            return
        least, offset = sent * 1000 - broker_ms, arrived * 1000 - broker_ms
        if min(self._offset, self._older) < least - SET_BACK:
            self._offset, self._older, self._at = offset, inf, arrived
        elif arrived - self._at > WINDOW:
            self._older, self._offset, self._at = self._offset, offset, arrived
        else:
            self._offset = min(self._offset, offset)

    def forget(self) -> None:
        """Discards the readings; the clock is not known until the next answer."""
        self._offset = self._older = inf

    def broker_ms(self, now: float) -> int | None:
        """Returns the broker's time at ``now``, which may be too early by the time that an answer takes; None if it is not
        known."""
        offset = min(self._offset, self._older)
        return None if offset == inf else round(now * 1000 - offset)

    def ends(self, broker_ms: int, duration_ms: int, sent: float, arrived: float) -> float:
        """Returns the time of this process at which something ends that began at ``broker_ms``, between ``sent`` and
        ``arrived``, and lasts ``duration_ms``."""
        duration = duration_ms / 1000
        offset = min(self._offset, self._older)
        known = broker_ms / 1000 + duration + (offset / 1000 if offset < inf else inf)
        return min(max(known, sent + duration), arrived + duration)
