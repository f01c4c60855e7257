"""The threads of the library. A job either starts in one of them, or is refused and never runs.

``concurrent.futures`` is not suitable for two reasons. It refuses all jobs after the main thread has returned, even jobs of an
event loop that still runs in another thread. And if the system refuses a thread ("can't start new thread"),
``ThreadPoolExecutor.submit`` raises after it has queued the job, which nevertheless runs when a thread is free. Here, a job is
queued only if a thread exists that will run it.

All threads are daemons. When the process exits, it waits for running jobs that must not be interrupted (``is_awaited``).
"""

from __future__ import annotations

import atexit
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

from rmq_protocol.errors import printable

from . import machine
from .errors import ClientStateError

_REFUSAL: Final = re.compile("can't (start|create) new thread|cannot schedule new futures")
"""The errors with which ``threading`` and ``concurrent.futures`` refuse to start a thread, or to run a job during the shutdown of
Python."""

P = ParamSpec("P")
T = TypeVar("T")


class NoThreadError(ClientStateError):
    """No thread exists for a job, and none can be started. The job does not run.

    Args:
        refused: The error of the attempt to start a thread.
    """

    def __init__(self, refused: str) -> None:
        super().__init__(f"no thread can be started ({refused}); {what_to_do(refused)}")
        self.refused = refused


def start_thread(target: Callable[P, object], name: str, *args: P.args, **options: P.kwargs) -> threading.Thread:
    """Start a daemon thread.

    Raises:
        NoThreadError: If the system refuses the thread.
    """
    thread = threading.Thread(target=target, name=name, args=args, kwargs=options, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(printable(error, 200)) from None
    return thread


class FreeThread:
    """A thread that is reserved for one job. Call ``submit`` with the job, or ``release`` to return the thread to its pool.

    ``submit`` has the signature of an executor's method, so that the object can be passed to ``loop.run_in_executor``. It raises
    ClientStateError after the pool was closed.
    """

    __slots__ = ("_room",)

    def __init__(self, room: _Room) -> None:
        self._room = room

    def submit(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        if machine.executor is not None:
            return machine.executor.submit(work, *args, **options)
        with self._room.lock:
            self._room.require_open()
            return self._room.put(lambda: work(*args, **options))

    def release(self) -> None:
        """Return the thread to its pool unused."""
        self._room.freed()


class ThreadPool:
    """A pool of up to ``most`` threads, which are started when they are needed and kept until ``close``.

    Its methods may be called from any thread. If ``machine.executor`` is set, that object runs the jobs instead.

    Args:
        most: Maximum number of threads.
        name: Name of the threads, to which a number is added.
        is_awaited: Whether the process waits for running jobs when it exits.
    """

    def __init__(self, most: int, name: str, *, is_awaited: bool = False) -> None:
        self.most = most
        self.refused: str | None = None
        """The error of the last attempt to start a thread; None if it succeeded, or there was no attempt."""
        self._name = name
        self._room = _Room(is_awaited=is_awaited)

    @property
    def count(self) -> int:
        """Number of threads."""
        return self._room.count

    def reserve(self, *, start: bool = True) -> FreeThread | None:
        """Reserve a free thread for one job and return it. If all threads are busy, start a new one.

        Return None if there is no thread: after ``close``, if ``most`` threads are busy, or if the system refuses a new thread.

        Args:
            start: Whether a new thread may be started.
        """
        room = self._room
        if machine.executor is not None:
            self.refused = machine.executor.refused
            return FreeThread(room) if self.refused is None else None
        with room.lock:
            if room.closed or (room.free <= 0 and not (start and self._start())):
                return None
            room.free -= 1
        return FreeThread(room)

    def start_one(self) -> bool:
        """Start a thread before it is needed.

        Returns:
            False if the system refuses the thread.
        """
        if machine.executor is not None:
            self.refused = machine.executor.refused
            return self.refused is None
        with self._room.lock:
            return self._start() or self._room.count >= self.most

    def submit(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Run a job in a free thread, in a new thread, or in the first thread that becomes free.

        Raises:
            NoThreadError: If the pool has no thread, and none can be started.
            ClientStateError: After ``close``.
        """
        room = self._room
        if machine.executor is not None:
            if machine.executor.refused is not None:
                raise NoThreadError(machine.executor.refused)
            return machine.executor.submit(work, *args, **options)
        with room.lock:
            room.require_open()
            if room.free <= 0 and not self._start() and not room.count:
                raise NoThreadError(self.refused or "")
            room.free -= 1
            return room.put(lambda: work(*args, **options))

    def close(self) -> None:
        """Cancel the jobs that have not begun, and end the threads. A thread with a job ends after the job."""
        self._room.close()

    def __del__(self) -> None:
        self._room.close()

    def _start(self) -> bool:
        """Start a thread. Return False if there are ``most`` threads, or the system refuses the thread."""
        room = self._room
        if room.count >= self.most:
            return False
        try:
            start_thread(_work, f"{self._name} {room.count + 1}", room)
        except NoThreadError as error:
            self.refused = error.refused
            return False
        self.refused = None
        room.count += 1
        room.free += 1
        return True


class _Room:
    """The state that the threads of a pool share.

    The threads have no reference to the pool itself, so a pool that is garbage-collected ends its threads.

    Attributes:
        free: Number of threads that have no job and are not reserved, minus the number of waiting jobs.
        under_way: The running jobs, if ``is_awaited``.
    """

    def __init__(self, *, is_awaited: bool) -> None:
        self.lock = threading.Lock()
        self.jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self.free = 0
        self.count = 0
        self.closed = False
        self.is_awaited = is_awaited
        self.under_way: set[Future[Any]] = set()
        _rooms.add(self)

    def require_open(self) -> None:
        if self.closed:
            raise ClientStateError("the threads have ended with their client; start the client again")

    def put(self, work: Callable[[], T]) -> Future[T]:
        """Queue a job. There is a free thread for it, or one will become free."""
        future: Future[T] = Future()
        self.jobs.put((future, work))
        return future

    def freed(self) -> None:
        with self.lock:
            self.free += 1

    def forget(self) -> None:
        """End the pool in a forked child process, where its threads do not exist and its lock may never be released."""
        self.lock, self.closed, self.under_way = threading.Lock(), True, set()

    def close(self) -> None:
        left: list[Future[Any]] = []
        with self.lock:
            if self.closed:
                return
            self.closed = True
            with suppress(Empty):
                while (job := self.jobs.get_nowait()) is not None:
                    left.append(job[0])
            for _ in range(self.count):
                self.jobs.put(None)
        for future in left:
            future.cancel()


def _work(room: _Room) -> None:
    """Run the jobs of a pool, in one of its threads."""
    while (job := room.jobs.get()) is not None:
        future, work = job
        if room.is_awaited:
            room.under_way.add(future)
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - the error belongs to the job
                room.freed()  # before the result is set, because the waiter may submit the next job
                future.set_exception(error)
            else:
                room.freed()
                future.set_result(result)
                del result
        else:
            room.freed()
        room.under_way.discard(future)
        del job, future, work


@contextmanager
def naming_refusals() -> Iterator[None]:
    """Return a context manager for third-party code that starts threads. It raises NoThreadError in place of CPython's error if the
    system refuses a thread.
    """
    try:
        yield
    except RuntimeError as error:
        if _REFUSAL.match(str(error)):
            raise NoThreadError(printable(error, 200)) from None
        raise


def what_to_do(refused: str) -> str:
    """Return advice for the user if threads are refused, as the end of an error message.

    Args:
        refused: The error of the attempt to start a thread.
    """
    if "shutdown" in refused:
        return "the main thread has ended; let it run as long as the client, with asyncio.run() or Thread.join()"
    return "raise the limit of threads and processes (pids.max of the container, ulimit -u), or end threads that are not needed"


_rooms: Final[WeakSet[_Room]] = WeakSet()


def _wait_at_exit() -> None:
    for room in list(_rooms):
        wait(list(room.under_way))


def _forget() -> None:
    """End all pools in a forked child, which has no threads of its parent."""
    for room in list(_rooms):
        room.forget()


# Both registrations are needed: children of ``multiprocessing`` exit without calling the functions of ``atexit``, and an event loop
# that outlives the main thread may start jobs after the functions of ``threading`` were called.
atexit.register(_wait_at_exit)
if hasattr(threading, "_register_atexit"):
    threading._register_atexit(_wait_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
