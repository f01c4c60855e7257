"""When a connection looks at its table next: one timer, set for the earliest deadline of all.

The same timer notices a dead peer: no byte since the first request that was written after the last byte came. After a loop that
was blocked no request is judged at once, since its answer may wait in the socket: as many bytes as wait there are read first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from math import inf
from time import monotonic
from typing import Final

__all__ = ["BLOCKED_AFTER", "GRACE_AFTER_WRITE", "Deadlines"]

SCAN_GRAIN: Final = 0.02
"""Seconds by which near deadlines are judged together."""
BLOCKED_AFTER: Final = 0.02
"""Seconds that a look is late after a loop that was blocked."""
GRACE_STEP: Final = 0.01
MOST_GRACE: Final = 0.5
"""Seconds for reading what waited in the socket, of any size."""
FULL_FROM: Final = 32 * 1024
"""Bytes in the socket from which on its receive window may be full: then more answers wait in the kernel of the peer.

Linux opens a window of 64 KiB, of which the kernel's own accounting takes a part; a reader that reads widens it.
"""
MOST_PUT_OFF: Final = 1.0
"""Seconds for graces in a row while nothing waits in the socket: in some services each turn of the loop is a block."""
MOST_GRACES: Final = 32
"""In a row, while bytes wait there: a turn of the loop reads 256 KiB, and a system keeps up to 8 MiB."""
GRACE_AFTER_WRITE: Final = 0.1
"""Seconds for the answer to a frame that a blocked loop kept from leaving until its deadline was over."""


class Deadlines:
    """``flush`` writes what is gathered; ``die`` closes the connection as dead.

    ``expire(now)`` ends those that are late, and returns the earliest deadline of the others, infinity if there are none.
    ``unread()``: bytes that wait in the socket.

    The attributes are public because the send path reads and sets them without a call.
    """

    __slots__ = (
        "_die", "_expire", "_flush", "_grace", "_graces", "_loop", "_next_step", "_timer", "_unread", "at", "dead_after",
        "received", "silent_since",
    )  # fmt: skip

    def __init__(
        self,
        dead_after: float,
        flush: Callable[[], None],
        expire: Callable[[float], float],
        die: Callable[[], None],
        unread: Callable[[], int],
    ) -> None:
        self.dead_after = dead_after
        """Seconds of silence while an answer is due."""
        self.at = inf
        """When the next look is due; a request with an earlier deadline calls ``arm``."""
        self.silent_since = inf
        """When the first request was written that nothing has been heard after."""
        self.received = 0
        """Bytes."""
        self._flush = flush
        self._expire = expire
        self._die = die
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._grace: tuple[float, float, int] | None = None
        """When a grace began, ``received`` at its end, and ``received`` at its last step."""
        self._graces = (0, inf)
        """How many began since requests were judged last, and when the first of them did."""
        self._next_step = inf
        """When the next step of a grace is due."""

    def arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = monotonic()
        self.at = max(at, now)
        # In a context of its own, since each scan sets the timer of the next.
        self._timer = self._loop.call_later(self.at - now, self._scan, context=Context())

    def stop(self) -> None:
        """Looks no more."""
        self.at = -inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _scan(self) -> None:
        now = monotonic()
        dead = now - self.silent_since >= self.dead_after
        if (dead or now - self.at > BLOCKED_AFTER) and self._more_to_read(now):
            self._next_step = now + GRACE_STEP
            self._timer = self._loop.call_later(GRACE_STEP, self._scan)
            return
        self._timer = None
        self.at = inf
        self._grace = None
        self._graces = (0, inf)
        if dead:
            self._die()
            return
        self._flush()  # a frame that is gathered will leave: its request must not be called unwritten
        earliest = min(self._expire(now), self.silent_since + self.dead_after)
        if earliest < self.at:
            self.arm(max(earliest, now + SCAN_GRAIN))

    def _more_to_read(self, now: float) -> bool:
        """After a blocked loop: whether what waited in the socket when the loop went on has still to be read.

        Frames that were gathered when the loop blocked leave first, if nothing else has written them since. Where the receive
        window may have been full it is over with the first step that brings nothing.
        """
        if self._grace is None or now - self._next_step > BLOCKED_AFTER:  # blocked, or blocked again
            self._flush()
            unread, (begun, since) = self._unread(), self._graces
            if begun >= MOST_GRACES or (not unread and now - since > MOST_PUT_OFF):
                return False
            self._graces = (begun + 1, min(since, now))
            self._grace = (now, self.received + unread if unread < FULL_FROM else inf, -1)
            return True
        began, whole, before = self._grace
        if self.received >= whole or self.received == before or now - began > MOST_GRACE:
            return False
        self._grace = (began, whole, self.received)
        return True
