"""The threads in which a consumer runs plain functions.

Without a free thread, no call begins. The messages wait, and no attempt is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ... import machine
from ..._backoff import Backoff
from ..._threads import FreeThread, ThreadPool, what_to_do
from ...health import Problem, ProblemCode
from ..delivery import Call

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0
"""Seconds between two attempts to start a thread while the system refuses threads. The pause grows from FIRST_PAUSE to
LONGEST_PAUSE."""
LOOK_EVERY: Final = 0.1
"""Seconds between two checks for a free thread, while cancelled calls, whose functions continue, occupy all threads."""


class HandlerThreads:
    """A pool of up to ``concurrency`` threads, which are kept until ``close``.

    Args:
        again: Called when calls that have waited for a thread may begin.
    """

    def __init__(self, concurrency: int, again: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPool(concurrency, "rmq_async handler", is_awaited=True)
        self._again = again
        self._next: FreeThread | None = None
        """The thread of the next call."""
        self._kept: dict[Call, FreeThread] = {}
        """The threads of calls that have not begun to use them."""
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._refused_since: float | None = None
        """Monotonic time since which the system has refused threads; None if it grants them."""

    @property
    def problem(self) -> Problem | None:
        """The problem that the system refuses threads, or None. May be called from any thread."""
        since, refused = self._refused_since, self._pool.refused
        if since is None or refused is None:
            return None
        return Problem(ProblemCode.NO_THREADS, f"for {machine.monotonic() - since:.0f} s {self._text(refused)}")

    @property
    def is_missing(self) -> bool:
        """Whether no plain function can be called at all. May be called from any thread."""
        return self._refused_since is not None and not self._pool.count

    def has_next(self) -> bool:
        """Reserve a thread for the next call. Return False if there is none; ``again`` is called when there may be one."""
        if self._next is None:
            self._next = self._pool.reserve(start=self._timer is None)
            if self._next is None:
                self._wait()
        return self._next is not None

    def take(self, delivery: Call) -> None:
        """Give a call the thread that ``has_next`` reserved."""
        if self._next is not None:
            self._kept[delivery], self._next = self._next, None

    def ended(self, delivery: Call) -> None:
        """Give back the thread of a call that has not used it."""
        if (thread := self._kept.pop(delivery, None)) is not None:
            thread.release()

    def of(self, delivery: Call) -> FreeThread | ThreadPool:
        """Return the thread of a call. Return the pool for a call that did not ``take`` a thread."""
        return self._kept.pop(delivery, None) or self._pool

    def close(self) -> None:
        """End the threads. Running functions continue until they return."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._next = None
        self._refused_since = None
        self._pool.close()

    # -- inside

    def _wait(self) -> None:
        """Set a timer for the next attempt to get a thread, after a failed attempt."""
        if self._timer is not None:
            return
        pause = LOOK_EVERY
        refused = self._pool.refused
        if refused is not None:
            pause = self._backoff.next()
            if self._refused_since is None:
                self._refused_since = machine.monotonic()
                logger.warning("%s", self._text(refused))
        self._timer = self._loop.call_later(pause, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._refused_since is not None:
            if not self._pool.start_one():
                self._wait()
                return
            logger.info(
                "threads can be started again after %.1f s; plain handlers are called",
                machine.monotonic() - self._refused_since,
            )
            self._refused_since = None
            self._backoff.reset()
        self._again()

    def _text(self, refused: str) -> str:
        count = self._pool.count
        what = f"plain handlers have {count} of {self._pool.most} threads" if count else "plain handlers cannot be called"
        return f"no new thread can be started ({refused}): {what}, and their messages wait; {what_to_do(refused)}"
