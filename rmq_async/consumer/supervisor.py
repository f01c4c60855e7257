"""The tasks of a running consumer.

A task that ``run`` started is restarted after a failure, and ``health()`` reports the failure for a minute. The error of a task
that ``once`` started is only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final

from .. import machine
from .._backoff import Backoff
from .._ordered import OrderedSet
from .._text import printable

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
SOUND_AFTER: Final = 60.0
"""Seconds after which ``health()`` no longer reports a failure of a task, and the pauses before restarts begin with the shortest
one again."""


class Supervisor:
    """Runs the consumer's tasks.

    Attributes:
        failures: Maps the name of a restarted task to its last error and the monotonic time of the error.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self.failures: dict[str, tuple[str, float]] = {}

    def run(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start a task that runs ``work()``, and runs it again after a pause if it raises an Exception."""
        return self.once(name, self._repeat(name, work))

    def once(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that runs ``work`` once. If ``work`` raises, the error is logged."""
        task = self._loop.create_task(work, name=f"rmq_async {name}", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all tasks except the current one, including tasks that start meanwhile, and wait until they have ended."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def is_ending(self) -> bool:
        """Return whether every task has a pending cancellation. Return True if there are no tasks."""
        return all(task.cancelling() for task in self._tasks)

    def recent(self) -> list[str]:
        """Return a text for each restarted task whose last failure is less than SOUND_AFTER seconds old."""
        now = machine.monotonic()
        return [
            f"{name} failed and was restarted: {text}"
            for name, (text, at) in list(self.failures.items())
            if now - at < SOUND_AFTER
        ]

    async def _repeat(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pauses, failed_at = Backoff(FIRST_PAUSE, LONGEST_PAUSE), 0.0
        while True:
            try:
                await work()
            except Exception as error:
                now = machine.monotonic()
                if now - failed_at > SOUND_AFTER:
                    pauses.reset()
                failed_at = now
                self.failures[name] = (printable(repr(error), 300), now)
                pause = pauses.next()
                logger.exception("the consumer's task %s failed and is restarted in %.1f s", name, pause)
                await asyncio.sleep(pause)
            else:
                self.failures.pop(name, None)
                return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the consumer's task %s failed and is not restarted", task.get_name(), exc_info=error)
