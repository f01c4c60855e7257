"""Finds the user's function that blocks the event loop, and names it in the log and in ``health()``.

A thread does this, because a blocked loop runs no other code.

The client's loop monitor is a timer. While the timer is overdue, the loop has not finished the turn in which it was due, and in one
turn each task takes at most one step. So if two checks find the same current task, and the timer has been overdue since the first
check, that task has blocked the loop in between. The thread checks every POLL seconds, and reads the current task only while the
timer is overdue, so handler calls have no extra cost. One thread serves all consumers of a loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from os.path import basename
from types import FrameType
from typing import Any, Final, NamedTuple

from ... import machine
from ..._text import printable
from ..._threads import NoThreadError, start_thread

logger = logging.getLogger(__name__)

POLL: Final = 0.25
"""Seconds between two checks."""
THRESHOLD: Final = 1.0
"""Seconds for which one task must block the loop before its function is named."""
REPORT_EVERY: Final = 10.0
"""Minimum seconds between two warnings about one function."""
MOST_REPORTED: Final = 1024

Find = Callable[[asyncio.Task[Any]], str | None]
"""Returns a description of the user's function that a task calls; None if the task calls none."""


class Block(NamedTuple):
    """A function of the user that blocks the loop, or has blocked it.

    Attributes:
        name: The description of the function.
        seconds: Minimum time for which it has blocked the loop.
        at: Monotonic time of the last check that found it.
    """

    name: str
    seconds: float
    at: float


class _Held(NamedTuple):
    """A task that may block the loop.

    Attributes:
        since: Monotonic time of the first check that found it.
    """

    task: asyncio.Task[Any]
    since: float


class LoopWatch:
    """Watches one loop for its consumers. ``join`` creates it."""

    running: Final[dict[asyncio.AbstractEventLoop, LoopWatch]] = {}
    """The watch of each loop that has consumers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self.finders: dict[Find, Callable[[], float]] = {}
        """Maps a finder to the function that returns the seconds by which the timer of its client is overdue."""
        self._blocks: dict[Find, Block] = {}
        """Maps a finder to the last block whose function it has named."""
        self._reported: dict[str, float] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        """The thread that checks the loop; None if it could not be started."""

    @classmethod
    def join(cls, find: Find, overdue: Callable[[], float]) -> LoopWatch | None:
        """Watch the running loop until ``leave(find)``. Return None in a simulation, which has no threads.

        Args:
            find: Names the user's function that a task calls.
            overdue: Returns the seconds by which a timer of the loop is overdue; 0 if it is not overdue.
        """
        if machine.executor is not None:
            return None
        loop = asyncio.get_running_loop()
        watch = cls.running.get(loop)
        if watch is None:
            watch = cls.running[loop] = cls(loop)
        watch._start()
        watch.finders[find] = overdue
        return watch

    def leave(self, find: Find) -> None:
        """End the watch that ``join(find)`` began. If no other ``find`` is left, end the thread."""
        self.finders.pop(find, None)
        self._blocks.pop(find, None)
        if not self.finders and self.running.pop(self._loop, None) is not None:
            self._over.set()
            if self._thread is not None:
                self._thread.join()

    def newest(self, find: Find) -> Block | None:
        """Return the last block that ``find`` has named, or None. May be called from any thread."""
        return self._blocks.get(find)

    def _start(self) -> None:
        """Start the thread if it does not run. If no thread can be started, nothing is watched until the next consumer starts."""
        if self._thread is not None:
            return
        try:
            self._thread = start_thread(self._run, "rmq_async loop watch")
        except NoThreadError as error:
            logger.warning("functions that block the event loop cannot be named: %s", error)

    def _run(self) -> None:
        held: _Held | None = None
        while not self._over.wait(POLL):
            held = self.look(held)

    def look(self, held: _Held | None) -> _Held | None:
        """Check the loop once, and name a task that has blocked it for THRESHOLD seconds. Return the argument for the next check.

        Args:
            held: The result of the previous check.
        """
        overdue = max((each() for each in tuple(self.finders.values())), default=0.0)
        task = asyncio.current_task(self._loop) if overdue > 0 else None
        now = machine.monotonic()
        if task is None:
            return None
        if held is None or held.task is not task or overdue < now - held.since:
            return _Held(task, now)
        if now - held.since >= THRESHOLD:
            try:
                self._name(task, now - held.since)
            except Exception:
                logger.exception("the task that blocks the event loop could not be named; report this defect")
        return held

    def _name(self, task: asyncio.Task[Any], seconds: float) -> None:
        for find in tuple(self.finders):
            name = find(task)
            if name is None:
                continue
            now = machine.monotonic()
            self._blocks[find] = Block(name, seconds, now)
            if now - self._reported.get(name, -REPORT_EVERY) < REPORT_EVERY:
                return
            while len(self._reported) >= MOST_REPORTED:
                del self._reported[next(iter(self._reported))]
            self._reported[name] = now
            logger.warning(
                "%s has blocked the event loop for %.1f s%s: heartbeats, locks and commits wait for it; run blocking code in a "
                "thread: await asyncio.to_thread(...)",
                name,
                seconds,
                _place(sys._current_frames().get(self._loop_thread)),
            )
            return


def _place(frame: FrameType | None) -> str:
    """Return the file, line and function of the innermost Python frame of the loop's thread. Return "" if there is no frame."""
    if frame is None:
        return ""
    code = frame.f_code
    return f", at {printable(basename(code.co_filename), 100)}:{frame.f_lineno} in {printable(code.co_name, 100)}"
