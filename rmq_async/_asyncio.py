"""Helpers for asyncio: waits with deadlines, work that several callers share, waits that a stop ends, work on many items, and the
base class of objects for ``async with``.

Unlike ``asyncio.wait_for``, the waits of ``WaitTable``, ``Flight`` and ``wait_until`` do not cancel the awaited object, because it
is shared by several callers. The waits of one ``WaitTable`` share a timer. If a timer runs more than ``BLOCKED_AFTER`` seconds
after its deadline, the event loop was blocked, and the result may already be in a socket. The wait then ends ``GRACE`` seconds
later, so that the loop can read from its sockets first.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from contextvars import Context
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from . import machine
from ._ordered import OrderedSet
from .errors import ClientStateError, RocketMQError
from .tracebacks import own_copy, without_frames

BLOCKED_AFTER: Final = 0.1
GRACE: Final = 0.02
SCAN_GRAIN: Final = 0.005
"""Minimum seconds between two scans of the deadlines. A new wait may end sooner."""
RESOLVED_PER_TURN: Final = 256
MIN_COMPACTED: Final = 64
"""Number of entries that the heap of deadlines may have in addition to two entries for each wait. Above that, it is compacted in
O(n)."""

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class WaitTable(Generic[T]):
    """Futures with deadlines that share one timer.

    A future gets its result from ``resolve``, or None at its deadline. ``leave`` is O(1) on average; ``join`` pushes onto a heap.
    """

    __slots__ = ("_at", "_deadlines", "_joined", "_loop", "_timer", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[T | None], None] = {}
        """Futures in the order in which they joined. They get their results in the same order."""
        self._deadlines: list[tuple[float, int, asyncio.Future[T | None]]] = []
        """A heap by deadline. The number makes entries unique, so futures are never compared."""
        self._joined = 0
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, deadline: float) -> asyncio.Future[T | None]:
        """Return a future that gets None at ``deadline`` (``time.monotonic``), unless it is done or passed to ``leave`` before."""
        future: asyncio.Future[T | None] = self._loop.create_future()
        self._waiting[future] = None
        self._joined += 1
        heappush(self._deadlines, (deadline, self._joined, future))
        if deadline < self._at:
            self._arm(deadline)
        return future

    def leave(self, future: asyncio.Future[T | None]) -> None:
        """Remove a future that ``join`` returned. Call this once for each future, even if it is done."""
        self._waiting.pop(future, None)
        if not self._waiting:
            self._clear()
        elif len(self._deadlines) > MIN_COMPACTED + 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._waiting]
            heapify(self._deadlines)

    async def wait(self, deadline: float) -> T | None:
        """Wait for the result that ``resolve`` gives; return None if ``deadline`` (monotonic) comes first."""
        future = self.join(deadline)
        try:
            return await future
        finally:
            self.leave(future)

    def resolve(self, result: T) -> None:
        """Give ``result`` to the pending futures in the table, in the order in which they joined.

        These futures no longer time out. Each iteration of the loop handles ``RESOLVED_PER_TURN`` futures, so that other
        callbacks run in between.
        """
        self._clear()
        for future in [*islice(self._waiting, RESOLVED_PER_TURN)]:
            del self._waiting[future]
            if not future.done():
                future.set_result(result)
        if self._waiting:
            self._loop.call_soon(self.resolve, result)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        # The timer runs in an empty context, not in the context of a caller, because each scan sets the timer of the next scan.
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._scan, context=Context())

    def _clear(self) -> None:
        self._deadlines.clear()
        self._at = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _scan(self) -> None:
        if machine.monotonic() - self._at > BLOCKED_AFTER:
            self._timer = self._loop.call_later(GRACE, self._end_late, context=Context())
        else:
            self._end_late()

    def _end_late(self) -> None:
        deadlines, now = self._deadlines, machine.monotonic()
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].done()):
            _, _, future = heappop(deadlines)
            if not future.done():
                future.set_result(None)
        self._at, self._timer = inf, None
        if deadlines:
            self._arm(max(deadlines[0][0], now + SCAN_GRAIN))


async def wait_until(future: asyncio.Future[Any], deadline: float) -> bool:
    """Wait until ``future`` is done or ``deadline`` (``time.monotonic``) has passed; return whether it is done.

    The future's outcome is neither read nor raised, and cancelling the wait does not cancel the future. Use this only for a future
    with few waiters, because each wait, when it ends, takes time in proportion to their number.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def late() -> None:
        nonlocal timer
        if machine.monotonic() - deadline > BLOCKED_AFTER and not waiter.done():
            timer = loop.call_later(GRACE, wake)
        else:
            wake()

    timer = loop.call_later(max(deadline - machine.monotonic(), 0.0), late)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()


# -- work that several callers share


class Flight(Generic[T]):
    """Work that several callers share, such as a connection attempt. It is running, or has just ended.

    Attributes:
        waiting: The futures of the callers, which get True when the work has ended.
    """

    __slots__ = ("_error", "_result", "task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting: WaitTable[bool] = WaitTable()
        self._error: BaseException | None = None
        self._result: T | None = None

    async def wait(self, deadline: float) -> T:
        """Return the result of the work. If the work failed, raise a copy of its error. The call suspends even if the work has
        ended.

        Raises:
            TimeoutError: At ``deadline`` (``time.monotonic``).
            ClientStateError: If the work was cancelled, for example by ``SingleFlight.close``.
        """
        future = self.waiting.join(deadline)
        try:
            over = await future
        finally:
            self.waiting.leave(future)
        if not over:
            raise TimeoutError
        return self.outcome()

    def outcome(self) -> T:
        """Return the result of work that has ended, or raise a copy of its error."""
        if self._error is not None:
            raise own_copy(self._error)
        return cast(T, self._result)

    def finish(self, result: T | None, error: BaseException | None) -> None:
        self._result, self._error = result, error
        self.waiting.resolve(True)


WaitFor = Callable[[Flight[T], float], Awaitable[T]]
"""The type of ``Flight.wait``, and of functions such as ``StopScope.wait`` that do the same but may also end for other reasons."""


class SingleFlight(Generic[T]):
    """Runs shared work by key, such as a connection attempt or a lookup. The first caller starts a task, and later callers share
    it.

    Each caller waits with its own deadline. The work continues if a deadline passes or a caller is cancelled. Joining and leaving
    stay cheap with 65,535 callers. Each caller gets its own copy of an error, because a shared instance would collect the
    tracebacks of all callers. The tasks run in an empty context.

    Args:
        name: Part of the names of the tasks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._flights: dict[Hashable, Flight[T]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    def start(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        """Return the running work for ``key``. If it is not running, start it with ``make()``.

        Work that has ended in this iteration of the loop is not shared, because its result may be older than the caller's request.
        If no caller waits, an error of the work goes to the loop's exception handler, unless it is a RocketMQError or TimeoutError.

        Raises:
            ClientStateError: After ``close``.
        """
        if self._closed:
            raise _stopping()
        flight = self._flights.get(key)
        if flight is None or flight.task.done():
            task = asyncio.get_running_loop().create_task(make(), name=f"rmq_async {self._name} {key}", context=Context())
            self._flights[key] = flight = Flight(task)
            task.add_done_callback(partial(self._finished, key, flight))
        return flight

    def waiting(self, key: Hashable) -> int:
        """Return the number of callers that wait for the work ``key``. Return 0 if it is not running."""
        flight = self._flights.get(key)
        return 0 if flight is None else len(flight.waiting)

    async def join(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """Start or share the work for a key, and return its result. This is ``start``, followed by ``Flight.wait``."""
        return await self.start(key, make).wait(deadline)

    def close(self) -> list[asyncio.Task[T]]:
        """Cancel all work, and make its callers fail. Return the tasks, which need one more iteration of the loop to end."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            flight.task.cancel()
            flight.finish(None, _stopping())
        return [flight.task for flight in flights]

    def _finished(self, key: Hashable, flight: Flight[T], task: asyncio.Task[T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if task.cancelled():
            flight.finish(None, _stopping())
            return
        error = task.exception()
        if error is not None and not isinstance(error, (RocketMQError, TimeoutError)) and not len(flight.waiting):
            task.get_loop().call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})
        flight.finish(None if error is not None else task.result(), error)


def _stopping() -> ClientStateError:
    return ClientStateError("the client is stopping; start it again, or use another client")


# -- waits that a stop ends


class StopScope:
    """Runs waits that ``stop()`` can end.

    Waits for a ``Flight``, of which there may be thousands, share the ``WaitTable`` of the flight. Any other wait runs in a
    cancellation scope that ``stop()`` triggers; other cancellations propagate.

    Args:
        error: Returns the error that current and later waits raise after ``stop()``.

    Attributes:
        deadline: Monotonic time by which the stop must have ended. 0.0 if there was no stop.
    """

    __slots__ = ("_error", "_futures", "_scopes", "_stopped", "deadline")

    def __init__(self, error: Callable[[], ClientStateError]) -> None:
        self._error = error
        self._scopes: OrderedSet[asyncio.Timeout] = OrderedSet()
        self._futures: dict[asyncio.Future[bool | None], None] = {}
        """The futures of current waits for flights."""
        self._stopped = False
        self.deadline = 0.0

    def __len__(self) -> int:
        return len(self._scopes) + len(self._futures)

    async def wait(self, flight: Flight[T], deadline: float) -> T:
        """Wait for a flight as ``Flight.wait`` does. If ``stop()`` is called first, raise the error of the scope."""
        if self._stopped:
            raise self._error()
        future = flight.waiting.join(deadline)
        self._futures[future] = None
        try:
            over = await future
        finally:
            del self._futures[future]
            flight.waiting.leave(future)
        if over is None:
            raise TimeoutError
        if not over:
            raise self._error()
        return flight.outcome()

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await ``awaitable``. If ``stop()`` is called first, cancel it and raise the error of the scope."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if self._stopped:
                    scope.reschedule(0.0)
                else:
                    self._scopes.add(scope)
                return await awaitable
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scopes.discard(scope)
            del scope  # else a cycle: it references the task, which keeps the error, whose traceback has this frame
        raise self._error()  # here, so that its context is not the TimeoutError, which has a frame that references the scope

    def stop(self, deadline: float = 0.0) -> None:
        """End all waits. A second call only changes the ``deadline``."""
        self._stopped, self.deadline = True, deadline
        for future in self._futures:
            if not future.done():
                future.set_result(False)
        scopes, self._scopes = self._scopes, OrderedSet()
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())


# -- blocks


class Startable(ABC):
    """Base class of objects that an ``async with`` block starts. The block also stops them when it ends, even after an error."""

    __slots__ = ()

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


# -- work on many items


async def for_each(items: Iterable[K], function: Callable[[K], Awaitable[V]], *, at_once: int = 16) -> dict[K, V]:
    """Await ``function(item)`` for every item, up to ``at_once`` at a time; return the results by item.

    After the first failure, cancel the remaining calls and raise its error.
    """
    results: dict[K, V] = {}
    listed = list(items)
    left = iter(listed)

    async def work() -> None:
        for item in left:
            results[item] = await function(item)

    group, error = asyncio.TaskGroup(), None
    try:
        async with group:
            for _ in range(min(at_once, len(listed))):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        error = without_frames(failures).exceptions[0]  # the frames of the group's traceback reference the group itself
    except asyncio.CancelledError as cancelled:
        error = without_frames(cancelled)
    if error is None:
        return results
    try:
        raise error
    finally:
        del error, group  # else a cycle: the traceback has this frame, and the group references the task, which keeps the error
