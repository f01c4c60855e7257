"""The clocks of brokers, derived from their responses, and the ages of messages by these clocks. This module does no I/O."""

# A broker holds a pop until its own clock shows the request's born time plus the poll time, and it ends the invisible time of a
# message by its own clock, too. If the clock of the client differs, the broker holds the pop too long or responds immediately each
# time, and the client considers messages expired that are not. Therefore this module never compares a broker's time with the time
# of this machine. Each response to a pop contains the broker's time of the pop, which lies between the request and the response by
# the monotonic clock of this process.

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf
from typing import Final

from .. import machine

WINDOW: Final = 60.0
"""Length of a window in seconds. Only responses of the current window and the previous window are used, because clocks drift and
are adjusted."""
SET_BACK: Final = 50.0
"""Milliseconds by which a broker's time may be earlier than earlier responses allow. If it is even earlier, the broker's clock was
set back."""
AGREE: Final = 1.0
"""The broker is not asked for its time if the store time of a message and this machine's time differ by at most this many
seconds."""
LOOK_AGAIN: Final = 600.0
"""Minimum seconds between two requests for a broker's time, even if the broker did not respond to the first one."""
_RUNTIME: Final = re.compile(r"\[ (\d{1,6}|\d,\d{3}) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]", re.ASCII)


class BrokerClock:
    """The clock of one broker. Times of the broker are epoch ms; times of this process are monotonic seconds."""

    __slots__ = ("_at", "_offset", "_older")

    def __init__(self) -> None:
        self._offset = self._older = inf
        """The smallest difference in ms between the arrival of a response, by this process's monotonic clock, and the broker's time
        in that response: in the current window, and in the previous window."""
        self._at = 0.0
        """The time at which the current window began."""

    @property
    def is_known(self) -> bool:
        return min(self._offset, self._older) < inf

    def note(self, broker_ms: int, sent: float, arrived: float) -> None:
        """Record the broker's time from a response.

        Args:
            broker_ms: The broker's time at some moment between the request and the response.
            sent: The time at which the request was sent.
            arrived: The time at which the response arrived.
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
        """Discard all recorded times. The clock is unknown until the next response."""
        self._offset = self._older = inf

    def broker_ms(self, now: float) -> int | None:
        """Return the broker's time at ``now``, or None if it is unknown.

        The result may be too early, by at most the time that a response takes to arrive.
        """
        offset = min(self._offset, self._older)
        return None if offset == inf else round(now * 1000 - offset)

    def ends(self, broker_ms: int, duration_ms: int, sent: float, arrived: float) -> float:
        """Return this process's time at the end of a period that began at ``broker_ms`` by the broker's clock and lasts
        ``duration_ms``.

        Args:
            sent: A time before the period began, such as the time of the request.
            arrived: A time after the period began, such as the arrival of the response.
        """
        duration = duration_ms / 1000
        offset = min(self._offset, self._older)
        known = broker_ms / 1000 + duration + (offset / 1000 if offset < inf else inf)
        return min(max(known, sent + duration), arrived + duration)


def broker_time_in(facts: Mapping[str, str]) -> int | None:
    """Return the broker's time, accurate to half a second, from its runtime information (GET_BROKER_RUNTIME_INFO).

    The runtime information contains the time at which the broker started and the seconds since then. Return None if either is
    missing.
    """
    started, runtime = facts.get("bootTimestamp", ""), _RUNTIME.fullmatch(facts.get("runtime", ""))
    if runtime is None or not re.fullmatch(r"\d{1,15}", started, re.ASCII):
        return None
    days, hours, minutes, seconds = (int(each.replace(",", "")) for each in runtime.groups())
    return int(started) + 1000 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds) + 500


class BrokerClocks:
    """The clocks of brokers, by the broker name of a queue. For a static topic, this is a logical name, not the name of a
    broker.
    """

    def __init__(self) -> None:
        self._clocks: dict[str, BrokerClock] = {}
        self._next_look: dict[str, float] = {}

    def of(self, broker: str) -> BrokerClock:
        found = self._clocks.get(broker)
        if found is None:
            found = self._clocks[broker] = BrokerClock()
        return found

    def age(self, broker: str, stored_ms: int) -> float:
        """Return the seconds since a message was stored, by the broker's clock. If that clock is unknown, use the clock of this
        machine.

        May be called from any thread.
        """
        clock = self._clocks.get(broker)
        now_ms = None if clock is None else clock.broker_ms(machine.monotonic())
        return max((machine.time() * 1000 if now_ms is None else now_ms) - stored_ms, 0.0) / 1000

    def wants_look(self, broker: str, stored_ms: int) -> bool:
        """Return whether the broker should be asked for its time, to determine the age of a message.

        Return True if the message is old or from the future by this machine's clock, and this method has not returned True for the
        broker in the last LOOK_AGAIN seconds.
        """
        if abs(machine.time() - stored_ms / 1000) <= AGREE:
            return False
        now = machine.monotonic()
        if now < self._next_look.get(broker, 0.0):
            return False
        self._next_look[broker] = now + LOOK_AGAIN
        return True
