"""Threads for what would hold the loop up: compressing and decompressing large bodies, reading the system's certificates.

They are the library's own. The loop's default executor belongs to the service, which fills it with blocking calls; what waits
behind them waits for seconds. A process has one set of threads, as many as it has processors and at most ``MOST``, made when they
are first needed and ended when the last client stops. Clients wait for them with a deadline: work that has not begun by then never
begins, the result of work that has is dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import CancelledError as JobCancelled
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TypeVar

from ..errors import ClientStateError
from .waiting import WaitTable

__all__ = ["MOST", "Threads"]

MOST: Final = 4
"""Threads of one process: compression keeps each of them busy, and more than these would take the loop's own time."""

T = TypeVar("T")


class _Shared:
    """The threads of this process. ``users``: clients that are running."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a child, which has none of its parent's threads, and clients of its own only."""
        self._lock = Lock()
        self._users = 0
        self._executor: ThreadPoolExecutor | None = None

    def join(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False, cancel_futures=True)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(min(MOST, os.cpu_count() or 1), thread_name_prefix="rmq_async")
            return self._executor.submit(work)


_shared = _Shared()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.reset)


class Threads:
    """One client's way to the threads of the process; belongs to the loop that makes it."""

    __slots__ = ("_closed", "_loop", "_waits")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waits: WaitTable[bool] = WaitTable()
        self._closed = False
        _shared.join()

    def close(self) -> None:
        """The client has stopped. Harmless the second time."""
        if not self._closed:
            self._closed = True
            _shared.leave()

    async def run(self, work: Callable[[], T], deadline: float, calls: set[asyncio.Future[Any]] | None = None) -> T:
        """What ``work()`` returns or raises, in a thread. Raises TimeoutError at ``deadline`` (``time.monotonic``).

        Raises ClientStateError where the last client stops before the work has begun. ``calls``: holds a future while it is
        waited for, so that others can end the wait with an exception.
        """
        future = self._waits.join(deadline)
        job = None
        try:
            job = _shared.submit(work)
            job.add_done_callback(lambda _: self._ended(future))
            if calls is not None:
                calls.add(future)
            if await future is None:
                raise TimeoutError
            return job.result()
        except JobCancelled:
            raise ClientStateError("the client was stopped before the work had begun") from None
        finally:
            self._waits.leave(future)
            if calls is not None:
                calls.discard(future)
            if job is not None:
                job.cancel()

    def _ended(self, future: asyncio.Future[bool | None]) -> None:
        """In the thread, or where a job was cancelled."""
        with suppress(RuntimeError):  # the loop was closed: there is no call left to wake
            self._loop.call_soon_threadsafe(_wake, future)


def _wake(future: asyncio.Future[bool | None]) -> None:
    if not future.done():
        future.set_result(True)
