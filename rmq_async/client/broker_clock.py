"""The clocks of brokers, derived from their answers, and the ages of messages by them. It does no I/O."""

# A broker holds a pop until the time of birth in the request plus the poll time, by its own clock, and ends a lease by it too.
# A client whose clock differs would be held too long, or answered at once again and again, and would take messages for expired.
# So nothing here compares a time of a broker with one of this machine: each answer to a pop names the broker's time at which it
# popped, which lies between the request and the answer by the monotonic clock of this process.

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Final

from .. import machine

WINDOW: Final = 60.0
"""Seconds of a window. Answers of the current and the last window count: clocks drift, and are set."""
SET_BACK: Final = 50.0
"""Milliseconds by which a broker's time may lie before the earliest time that former answers allow; beyond that its clock
counts as set back."""
AGREE: Final = 1.0
"""Seconds by which the store time of a message and this machine's time may differ without a doubt in the broker's clock."""
LOOK_AGAIN: Final = 600.0
"""Seconds after which a broker is asked for its time again, also where it has not answered."""
_RUNTIME: Final = re.compile(r"\[ (\d{1,6}|\d,\d{3}) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]", re.ASCII)


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
        """Read an answer.

        Args:
            broker_ms: The broker's time at some moment between the request and the answer.
        """
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
        """Discard the readings; the clock is not known until the next answer."""
        self._offset = self._older = inf

    def broker_ms(self, now: float) -> int | None:
        """Return the broker's time at ``now``, which may be too early by the time that an answer takes; None if it is not
        known.
        """
        offset = min(self._offset, self._older)
        return None if offset == inf else round(now * 1000 - offset)

    def ends(self, broker_ms: int, duration_ms: int, sent: float, arrived: float) -> float:
        """Return the time of this process at which something ends that began at ``broker_ms``, between ``sent`` and
        ``arrived``, and lasts ``duration_ms``.
        """
        duration = duration_ms / 1000
        offset = min(self._offset, self._older)
        known = broker_ms / 1000 + duration + (offset / 1000 if offset < inf else inf)
        return min(max(known, sent + duration), arrived + duration)


def broker_time_in(facts: Mapping[str, str]) -> int | None:
    """Return the broker's time, to half a second, from its runtime information (GET_BROKER_RUNTIME_INFO), which has the time of
    its start and the seconds since then; None without them.
    """
    started, runtime = facts.get("bootTimestamp", ""), _RUNTIME.fullmatch(facts.get("runtime", ""))
    if runtime is None or not re.fullmatch(r"\d{1,15}", started, re.ASCII):
        return None
    days, hours, minutes, seconds = (int(each.replace(",", "")) for each in runtime.groups())
    return int(started) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds) + 500


class BrokerClocks:
    """The clocks of brokers, by the names of queues' brokers, which for static topics are no brokers' own."""

    def __init__(self) -> None:
        self._clocks: dict[str, BrokerClock] = {}
        self._next_look: dict[str, float] = {}

    def of(self, broker: str) -> BrokerClock:
        found = self._clocks.get(broker)
        if found is None:
            found = self._clocks[broker] = BrokerClock()
        return found

    def age(self, broker: str, stored_ms: int) -> float:
        """Return the seconds since a message was stored, by the broker's clock, or, where that is not known, by this machine's.

        From any thread.
        """
        clock = self._clocks.get(broker)
        now_ms = None if clock is None else clock.broker_ms(machine.monotonic())
        return max((machine.time() * 1000 if now_ms is None else now_ms) - stored_ms, 0.0) / 1000

    def wants_look(self, broker: str, stored_ms: int) -> bool:
        """Return whether the broker is to be asked for its time now, for the age of a message: the message is old, or of the
        future, by this machine's clock, and the broker was not asked in the last LOOK_AGAIN seconds.
        """
        if abs(machine.time() - stored_ms / 1000) <= AGREE:
            return False
        now = machine.monotonic()
        if now < self._next_look.get(broker, 0.0):
            return False
        self._next_look[broker] = now + LOOK_AGAIN
        return True
