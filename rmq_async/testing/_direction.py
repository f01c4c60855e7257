"""The faults of one direction of a proxy: they decide when a connection's next bytes may pass, and how many.

Times and sizes are computed from the current settings when bytes are to pass, not when they arrive, so a changed or cleared
fault takes effect at once for bytes that are already queued.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Final

__all__ = ["Cut", "Direction"]

_TICK: Final = 0.02
"""Seconds of bandwidth that pass in one write: small enough to be smooth, large enough for the loop's timer."""


class Cut:
    """A fault that closes a connection after ``count`` bytes: by FIN, or by RST if ``reset``. ``times``: the number of connections
    that are still to be closed; None for all."""

    def __init__(self, count: int, reset: bool, times: int | None) -> None:
        self.count = count
        self.reset = reset
        self.times = times


class Direction:
    """The faults of one direction of a FaultProxy; every method may be called at any time, on the proxy's loop.

    Faults combine. ``passed``: bytes forwarded so far. ``injected``: how often each fault has affected a read, a write or a
    connection, by name ("latency", "bandwidth", "slice", "stall", "cut"); a test should assert on it, because a fault that affected
    nothing proves nothing.
    """

    def __init__(self) -> None:
        self.passed = 0
        self.injected: Counter[str] = Counter()
        self.delay = self.jitter = self.pause = 0.0
        self.rate: float | None = None
        self.size: int | None = None
        self.stalled = False
        self.cut: Cut | None = None
        self.waiters: set[Callable[[], None]] = set()

    def latency(self, seconds: float, *, jitter: float = 0.0) -> None:
        """Delays bytes by ``seconds``, plus up to ``jitter`` seconds drawn for each read; keeps their order.

        ``latency(0)`` ends it. Raises ValueError for a time that is negative, infinite or NaN.
        """
        self.delay, self.jitter = _seconds("latency", seconds), _seconds("jitter", jitter)
        self._changed()

    def bandwidth(self, bytes_per_second: float | None) -> None:
        """Limits each connection to this rate; None ends it. Raises ValueError for a rate of 0 or less, infinity and NaN."""
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ValueError(
                f"bytes_per_second must be a positive, finite number, or None for no limit, not {bytes_per_second}"
            )
        self.rate = bytes_per_second
        self._changed()

    def slice(self, size: int | None, *, pause: float = 0.001) -> None:
        """Splits the stream into writes of at most ``size`` bytes, at least ``pause`` seconds apart; None ends it.

        With a longer pause the peer more likely reads each piece separately. Raises ValueError for a size below 1, and for a pause
        that is negative, infinite or NaN.
        """
        if size is not None and size < 1:
            raise ValueError(f"size must be at least 1 byte, or None for no limit, not {size}")
        self.size, self.pause = size, _seconds("pause", pause)
        self._changed()

    def stall(self) -> None:
        """Forwards nothing until ``resume`` or ``clear``; with a full buffer the proxy stops reading, so the sender's writes
        block."""
        self.stalled = True
        self._changed()

    def resume(self) -> None:
        """Ends a stall; queued bytes pass as the other faults let them."""
        self.stalled = False
        self._changed()

    def cut_after(self, count: int, *, reset: bool = False, times: int | None = 1) -> None:
        """Closes a connection at both ends after ``count`` bytes have passed: by FIN, or with ``reset`` by RST.

        Bytes are counted per connection, from this call on, or from the connection's start if that is later; with 0 the next
        byte closes the connection and does not pass. ``times``: the number of connections that are closed, those that reach the
        count first; None for all. A new call replaces an earlier one.
        Raises ValueError for a negative count and for ``times`` below 1.
        """
        if count < 0:
            raise ValueError(f"count must not be negative, it is {count}")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for all connections, it is {times}")
        self.cut = Cut(count, reset, times)
        self._changed()

    def clear(self) -> None:
        """Ends every fault; queued bytes pass at once. ``passed`` and ``injected`` keep their values."""
        self.delay = self.jitter = self.pause = 0.0
        self.rate = self.size = self.cut = None
        self.stalled = False
        self._changed()

    def piece(self, size: int) -> int:
        """Returns how many of ``size`` bytes that may pass now go into one write."""
        if self.size is not None and size > self.size:
            self.injected["slice"] += 1
            size = self.size
        if self.rate is not None:
            size = min(size, max(1, int(self.rate * _TICK)))
        return size

    def use_up(self, cut: Cut) -> None:
        """Counts a connection that ``cut`` has ended, and removes the cut after the last one."""
        self.injected["cut"] += 1
        if cut.times is not None:
            cut.times -= 1
            if not cut.times and self.cut is cut:
                self.cut = None

    def _changed(self) -> None:
        for wake in self.waiters:
            wake()


def _seconds(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds from 0 on, not {value}")
    return value
