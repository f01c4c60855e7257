"""When a connection looks at its table next: one timer, set for the earliest deadline of all.

The same timer notices a dead peer: no byte since the first request that was written after the last byte came. A loop that was
blocked judges nobody at once, since answers may wait in the socket: some rounds of reads pass first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from math import inf
from time import monotonic
from typing import Final

__all__ = ["GRACE_AFTER_WRITE", "Deadlines"]

SCAN_GRAIN: Final = 0.02
"""Seconds by which near deadlines are judged together."""
BLOCKED_AFTER: Final = 0.1
GRACE_STEP: Final = 0.01
GRACE_STEPS: Final = 20
GRACE_AFTER_WRITE: Final = 0.1


class Deadlines:
    """``flush`` writes what is gathered; ``die`` closes the connection as dead.

    ``expire(now)`` tells whoever is late, and returns the earliest deadline of the others, infinity if there are none.

    The attributes are public because the send path reads and sets them without a call.
    """

    __slots__ = (
        "_die", "_expire", "_flush", "_grace", "_loop", "_timer", "at", "dead_after", "reads", "silent_since", "wrote_at",
    )  # fmt: skip

    def __init__(
        self, dead_after: float, flush: Callable[[], None], expire: Callable[[float], float], die: Callable[[], None]
    ) -> None:
        self.dead_after = dead_after
        """Seconds of silence while an answer is due."""
        self.at = inf
        """When the next look is due; whoever has an earlier deadline calls ``arm``."""
        self.silent_since = inf
        """When the first request was written that nothing has been heard after."""
        self.wrote_at = -inf
        self.reads = 0
        self._flush = flush
        self._expire = expire
        self._die = die
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._grace = (0, 0, -inf)

    def arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = monotonic()
        self.at = max(at, now)
        # In nobody's context, since each scan sets the timer of the next.
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
        if (dead or now - self.at > BLOCKED_AFTER) and self._more_to_read():
            self._timer = self._loop.call_later(GRACE_STEP, self._scan)
            return
        self._timer = None
        self.at = inf
        self._grace = (0, 0, -inf)
        if dead:
            self._die()
            return
        self._flush()  # a frame that is gathered will leave: its request must not be called unwritten
        earliest = min(self._expire(now), self.silent_since + self.dead_after)
        if earliest < self.at:
            self.arm(max(earliest, now + SCAN_GRAIN))

    def _more_to_read(self) -> bool:
        """After a blocked loop: whether to let another round of reads pass, since answers may wait in the socket.

        Frames that were gathered when the loop blocked leave first, and get the time of an answer.
        """
        steps, reads, wrote = self._grace
        if not steps:
            self._flush()
            wrote = self.wrote_at if self.wrote_at > self.at else -inf  # what is written later is no reason to wait
        fresh = monotonic() - wrote < GRACE_AFTER_WRITE
        if steps >= GRACE_STEPS or (steps and reads == self.reads and not fresh):
            return False
        self._grace = (steps + 1, self.reads, wrote)
        return True
