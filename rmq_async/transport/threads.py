"""Threads for work that would block the event loop: compressing and decompressing large bodies, reading the system's certificates.

The library has its own threads, because the blocking calls of a service in the loop's default executor would delay this work for
seconds. All clients of a process share these threads, at most ``MAX_THREADS`` and at most one for each processor. They are started
at first use and ended when the last client stops. Callers wait until a deadline: work that has not started by then never starts,
and the result of work that has started is dropped. If there is no thread and none can be started, the loop itself does the work:
this blocks it for milliseconds, but otherwise neither a large message nor the messages behind it would make progress.
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
"""Maximum number of threads of one process: compression keeps each thread busy, and more threads would slow the loop down."""

T = TypeVar("T")


class _Shared:
    """The threads of this process.

    Attributes:
        _users: Number of ``Threads`` that are not closed.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the initial state, without threads. This is also called in a forked child, which has no threads of its parent."""
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
    """One client's use of the threads. It belongs to the loop that is running when it is made."""

    __slots__ = ("_closed", "_loop", "_waits")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits: WaitTable[bool] = WaitTable()
        self._closed = machine.executor is not None
        """True from the start if another executor is used, because the client is then no user of the process's threads."""
        if not self._closed:
            _shared.join()

    def close(self) -> None:
        """End this client's use of the threads. The threads end when the last client calls it. Further calls do nothing."""
        if not self._closed:
            self._closed = True
            _shared.leave()

    async def run(self, work: Callable[[], T], deadline: float, calls: OrderedSet[asyncio.Future[Any]] | None = None) -> T:
        """Run ``work()`` in a thread; return its result or raise its error.

        Args:
            calls: A set that contains a future while this method waits, so that other code can end the wait with an exception.

        Raises:
            TimeoutError: If the work has not ended at ``deadline`` (monotonic).
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
        """Wake the caller of a job that has ended in its thread, or that was cancelled."""
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            self._loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[bool | None]) -> None:
    if not future.done():
        future.set_result(True)
