"""Rates of subscriptions: a token bucket for each."""

# Pure, without a clock.
#
# A bucket fills with ``rate`` tokens a second, and holds those of BURST seconds, one at least; each message of a call takes
# one. A call may begin when there is one token, even if it takes more; the next call then waits longer. A subscription that
# finds no token waits for those of PACE seconds, one at least, so that a high rate does not need a timer for each message.

from __future__ import annotations

from typing import Final

__all__ = ["Bucket"]

BURST: Final = 0.1
PACE: Final = 0.01
_ONE: Final = 1.0 - 1e-6
"""One token, less the rounding errors of sums of floats."""


class Bucket:
    """A token bucket. ``rate``: tokens a second. ``now``: monotonic time, at which the bucket is full."""

    __slots__ = ("_at", "_until", "rate", "tokens")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self.tokens = self.capacity
        self._at = self._until = now

    @property
    def capacity(self) -> float:
        return max(1.0, self.rate * BURST)

    def due(self, rate: float, now: float) -> float:
        """Returns the time at which a call may begin: ``now`` or later; it does not change until then, unless the rate does.
        ``rate``: tokens per second from now on."""
        if now < self._until and rate == self.rate:
            return self._until
        self.tokens += max(now - self._at, 0.0) * self.rate
        self._at, self.rate = now, rate
        self.tokens = min(self.tokens, self.capacity)
        if self.tokens >= _ONE:
            self._until = now
        else:
            wanted = min(max(1.0, rate * PACE), self.capacity)
            self._until = now + (wanted - self.tokens) / rate
        return self._until

    def take(self, count: int) -> None:
        """Takes the tokens of a call with ``count`` messages."""
        self.tokens -= count
