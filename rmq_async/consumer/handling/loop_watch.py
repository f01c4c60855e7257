"""Finds the user's function that blocks the event loop, and names it in the log and in ``health()``.

A thread does this, because a blocked loop runs no other code.

The client's loop monitor is a timer. While it is overdue, the loop has not finished the turn in which it was due, and in one
turn each task takes one step at most. So a task that is the current one in two looks, with the timer overdue since the first
of them, has blocked the loop between them. The thread looks each POLL seconds, and asks which task is the current one only while
the timer is overdue; calls of handlers pay nothing. One thread serves all consumers of a loop.
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
"""Seconds between two looks."""
THRESHOLD: Final = 1.0
"""Seconds for which one task must hold the loop before its function is named."""
REPORT_EVERY: Final = 10.0
"""Seconds between two warnings about one function."""
MOST_REPORTED: Final = 1024

Find = Callable[[asyncio.Task[Any]], str | None]
"""Returns a text for a task that calls a function of the user; None for another task."""


class Block(NamedTuple):
    """A function of the user that holds the loop, or has held it.

    Attributes:
        seconds: Least time for which it did.
        at: Monotonic time of the last look that found it.
    """

    name: str
    seconds: float
    at: float


class _Held(NamedTuple):
    """A task that may block the loop.

    Attributes:
        since: Monotonic time of the first look that found it.
    """

    task: asyncio.Task[Any]
    since: float


class LoopWatch:
    """Watches one loop for its consumers. Created by ``join``."""

    running: Final[dict[asyncio.AbstractEventLoop, LoopWatch]] = {}
    """The watch of each loop that has consumers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self.finders: dict[Find, Callable[[], float]] = {}
        """Finder -> the function that returns the seconds by which the timer of its client is overdue."""
        self._blocks: dict[Find, Block] = {}
        """Finder -> the newest block whose function it has named."""
        self._reported: dict[str, float] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        """The thread that looks; None while it is refused."""

    @classmethod
    def join(cls, find: Find, overdue: Callable[[], float]) -> LoopWatch | None:
        """Watch the running loop until ``leave(find)``; return None in a simulation, which has no threads.

        Args:
            overdue: Returns the seconds by which a timer of the loop is overdue, 0 for none.
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
        """End a ``join``; the last one ends the thread."""
        self.finders.pop(find, None)
        self._blocks.pop(find, None)
        if not self.finders and self.running.pop(self._loop, None) is not None:
            self._over.set()
            if self._thread is not None:
                self._thread.join()

    def newest(self, find: Find) -> Block | None:
        """Return the newest block that ``find`` has named, or None. May be called from any thread."""
        return self._blocks.get(find)

    def _start(self) -> None:
        """Start the thread, unless it runs. Where threads are refused, nothing is watched until the next consumer starts."""
        if self._thread is not None:
            return
        try:
            self._thread = start_thread(self._run, "rmq_async loop watch")
        except NoThreadError as error:
            logger.warning("functions that block the event loop are not named: %s", error)

    def _run(self) -> None:
        held: _Held | None = None
        while not self._over.wait(POLL):
            held = self.look(held)

    def look(self, held: _Held | None) -> _Held | None:
        """Name a task that has blocked the loop for long; return the result for the next look.

        Args:
            held: The result of the previous look.
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
                "%s has blocked the event loop for %.1f s%s: heartbeats, locks and commits wait for it; run what blocks in a "
                "thread: await asyncio.to_thread(...)",
                name,
                seconds,
                _place(sys._current_frames().get(self._loop_thread)),
            )
            return


def _place(frame: FrameType | None) -> str:
    """Return file, line and function that the loop's thread runs now, of the innermost Python frame; "" without a frame."""
    if frame is None:
        return ""
    code = frame.f_code
    return f", at {printable(basename(code.co_filename), 100)}:{frame.f_lineno} in {printable(code.co_name, 100)}"
