"""The faults of one direction of a proxy, and what they say to a connection: when its next bytes may pass, and how many.

Everything is worked out from the present settings at the moment it is asked for, nothing is fixed when bytes come in; so a
change, or taking a fault back, holds at once for bytes that wait already.
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
    """``count`` bytes pass, then the connection ends; ``times`` connections, None for every one."""

    def __init__(self, count: int, reset: bool, times: int | None) -> None:
        self.count = count
        self.reset = reset
        self.times = times


class Direction:
    """What bytes meet on their way through a proxy; every method may be called at any time, on the proxy's loop.

    Faults add up. ``passed``: bytes let through so far. ``injected``: how often which fault met something, by name ("latency",
    "bandwidth", "slice", "stall", "cut"); a test whose faults met nothing proves nothing.
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
        """Bytes pass that much later, and up to ``jitter`` seconds more, drawn for each read; their order stays. 0 ends it."""
        self.delay, self.jitter = _seconds("latency", seconds), _seconds("jitter", jitter)
        self._changed()

    def bandwidth(self, bytes_per_second: float | None) -> None:
        """At most so many bytes a second pass on each connection; None ends it."""
        if bytes_per_second is not None and not 0 < bytes_per_second < math.inf:
            raise ValueError(f"a bandwidth must be a positive number of bytes a second, not {bytes_per_second}")
        self.rate = bytes_per_second
        self._changed()

    def slice(self, size: int | None, *, pause: float = 0.001) -> None:
        """Bytes pass in pieces of at most ``size``, each a write of its own, ``pause`` seconds apart; None ends it.

        The longer the pause, the surer it is that the peer reads each piece by itself.
        """
        if size is not None and size < 1:
            raise ValueError(f"a piece must have at least 1 byte, not {size}")
        self.size, self.pause = size, _seconds("pause", pause)
        self._changed()

    def stall(self) -> None:
        """Nothing passes until ``resume``; once the proxy's buffer is full it reads no more, and the sender sees that."""
        self.stalled = True
        self._changed()

    def resume(self) -> None:
        self.stalled = False
        self._changed()

    def cut_after(self, count: int, *, reset: bool = False, times: int | None = 1) -> None:
        """When ``count`` bytes have passed on a connection, both its ends are closed: by FIN, or with ``reset`` by RST.

        Each connection counts by itself, from now on or from its own start; with 0 the first byte does not pass. It happens
        to the first ``times`` connections that come so far, None: to every one. A new call replaces what is left of an
        earlier one.
        """
        if count < 0:
            raise ValueError(f"count must not be negative, it is {count}")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, it is {times}")
        self.cut = Cut(count, reset, times)
        self._changed()

    def clear(self) -> None:
        """Ends every fault; what was held passes at once. ``passed`` and ``injected`` stay."""
        self.delay = self.jitter = self.pause = 0.0
        self.rate = self.size = self.cut = None
        self.stalled = False
        self._changed()

    def piece(self, size: int) -> int:
        """How many of ``size`` bytes that may pass now go in one write."""
        if self.size is not None and size > self.size:
            self.injected["slice"] += 1
            size = self.size
        if self.rate is not None:
            size = min(size, max(1, int(self.rate * _TICK)))
        return size

    def use_up(self, cut: Cut) -> None:
        """``cut`` has ended a connection."""
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
        raise ValueError(f"{name} must be a number of seconds from 0 on, not {value}")
    return value
