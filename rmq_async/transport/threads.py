"""Threads for work that would block the loop: compressing and decompressing large bodies, reading the system's certificates.

They are the library's own. The loop's default executor belongs to the service, whose blocking calls would delay this work for
seconds. A process has one set of threads, at most as many as the machine has processors and at most ``MAX_THREADS``, made at
first use and ended when the last client stops. Clients wait until a deadline: work that has not started by then never starts, and
the result of work that has started is dropped. The loop itself does the work while no thread exists and none can be started: it
takes milliseconds, and without it neither a large message nor those behind it would get on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import CancelledError as JobCancelled
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TypeVar

from .. import machine
from .._asyncio import WaitTable
from .._ordered import OrderedSet
from .._threads import NoThreadError, ThreadPool
from ..errors import ClientStateError

MAX_THREADS: Final = 4
"""Maximum number of threads of one process: compression keeps each one busy, and more would take the loop's time."""

T = TypeVar("T")


class _Shared:
    """The threads of this process.

    Attributes:
        _users: Number of ``Threads`` that are not closed.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the state without threads and clients. Also called in a forked child, which has none of its parent's threads."""
        self._lock = Lock()
        self._users = 0
        self._pool: ThreadPool | None = None

    def join(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPool(min(MAX_THREADS, os.cpu_count() or 1), "rmq_async")
            return self._pool.submit(work)


_shared = _Shared()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.reset)


class Threads:
    """One client's use of the threads; belongs to the loop that makes it."""

    __slots__ = ("_closed", "_loop", "_waits")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits: WaitTable[bool] = WaitTable()
        self._closed = machine.executor is not None
        """True from the start if another executor is used: the client does not count among the users of the process's threads."""
        if not self._closed:
            _shared.join()

    def close(self) -> None:
        """End this client's use of the threads; when the last client does, the threads end. A second call has no effect."""
        if not self._closed:
            self._closed = True
            _shared.leave()

    async def run(self, work: Callable[[], T], deadline: float, calls: OrderedSet[asyncio.Future[Any]] | None = None) -> T:
        """Run ``work()`` in a thread; return its result or raise its error.

        Args:
            calls: Contains a future during the wait, so that other code can end it with an exception.

        Raises:
            TimeoutError: At ``deadline`` (monotonic).
            ClientStateError: If the last client stops before the work has started.
        """
        try:
            job = _shared.submit(work)
        except NoThreadError:
            return work()
        future = self._waits.join(deadline)
        try:
            job.add_done_callback(lambda _: self._ended(future))
            if calls is not None:
                calls.add(future)
            if await future is None:
                raise TimeoutError
            return job.result()
        except JobCancelled:
            raise ClientStateError("the client was stopped before the work had started; start it again") from None
        finally:
            self._waits.leave(future)
            if calls is not None:
                calls.discard(future)
            job.cancel()

    def _ended(self, future: asyncio.Future[bool | None]) -> None:
        """Handle the end of a job, in the thread or after a cancellation."""
        with suppress(RuntimeError):  # the loop is closed, so no call waits
            self._loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[bool | None]) -> None:
    if not future.done():
        future.set_result(True)
