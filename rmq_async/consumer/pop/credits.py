"""Limits the messages that a subscription may hold at a time to those in calls and those that its handlers begin soon. It does
no I/O."""

# No other member gets a popped message while it waits here. So a subscription holds at most as many messages as it has slots,
# and those that its handlers begin within AHEAD seconds at their recent rate. Sizes are known only after the arrival of
# messages: if large messages follow small ones, the answers to the pops in flight may exceed the limit of bytes.

from __future__ import annotations

from math import ceil
from typing import Final

__all__ = ["Credits"]

AHEAD: Final = 0.2
"""Seconds of work that are popped ahead."""
MEASURED_FOR: Final = 0.05
"""Seconds from one measurement of the rate to the next, at least."""
MOST_AHEAD: Final = 2048


class Credits:
    """The room for popped messages. ``limit``, ``size_limit``: messages and bytes of bodies that may be held. ``sources``:
    number of the sources that share the room.

    ``taken``, ``size``: messages and bytes that are held. ``reserved``: messages that pops in flight may bring.
    """

    __slots__ = ("_ended", "_measured_at", "_rate", "limit", "mean_size", "reserved", "size", "size_limit", "sources", "taken")

    def __init__(self, limit: int, size_limit: int) -> None:
        self.limit = limit
        self.size_limit = size_limit
        self.taken = self.size = self.reserved = self.sources = 0
        self.mean_size = 0.0
        """Running mean of the sizes of bodies, in bytes; 0 before the first message."""
        self._ended = 0
        self._measured_at = 0.0
        self._rate = 0.0
        """Messages that ended per second, lately."""

    def take(self, sizes: list[int]) -> None:
        """Counts messages that have arrived."""
        self.taken += len(sizes)
        mean = self.mean_size
        for size in sizes:
            self.size += size
            mean = mean + (size - mean) / 8 if mean else float(size)
        self.mean_size = mean

    def give(self, sizes: list[int]) -> None:
        """Counts messages that have ended."""
        self.taken -= len(sizes)
        self.size -= sum(sizes)
        self._ended += len(sizes)

    def measure(self, now: float) -> None:
        """Measures the rate at which messages end. ``now``: monotonic."""
        passed = now - self._measured_at
        if passed >= MEASURED_FOR:
            rate = self._ended / passed
            self._rate = max(rate, (self._rate + rate) / 2)
            self._ended, self._measured_at = 0, now

    def wanted(self, slots: int, rate: float | None) -> int:
        """Returns the number of messages that may be held. ``slots``: maximum messages in calls at a time. ``rate``: messages
        per second that the subscription allows, None for no limit."""
        begun = self._rate if rate is None else min(self._rate, rate)
        ahead = min(ceil(begun * AHEAD), MOST_AHEAD)
        if rate is not None:
            slots = min(slots, max(ceil(rate), 1))  # no more than one second's
        return min(slots + ahead, self.limit)

    def free(self, slots: int, rate: float | None) -> int:
        """Returns the number of messages that a pop may request now, 0 or less for none."""
        free = self.wanted(slots, rate) - self.taken - self.reserved
        if self.mean_size and free > 0:
            room = (self.size_limit - self.size) / self.mean_size - self.reserved
            if room < free:
                free = int(room) if room >= 1 else int(not self.taken and not self.reserved)
        return free
