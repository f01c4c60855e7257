"""Helpers for asyncio: waits with deadlines, work that several callers share, waits that a stop ends, work on many items, and
the base class of objects for ``async with``.

The waits of ``WaitTable``, ``Flight`` and ``wait_until`` do not cancel what they wait for, because that belongs to several callers;
``asyncio.wait_for`` would. The waits of one ``WaitTable`` share a timer. A timer that runs more than ``BLOCKED_AFTER`` seconds
after its deadline waits ``GRACE`` seconds more, in which the loop does its I/O: the result may already be in the socket.
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
"""Seconds after a scan of the deadlines within which the remaining ones are not scanned again; a new wait can end sooner."""
RESOLVED_PER_TURN: Final = 256
MIN_COMPACTED: Final = 64
"""Number of entries that the heap may have beside two for each wait; it is compacted above that, which is O(n)."""

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class WaitTable(Generic[T]):
    """Futures with deadlines: one timer for all of them.

    Leaving is O(1) on average; joining pushes onto a heap.

    A future gets its result by ``resolve``, or None at its deadline.
    """

    __slots__ = ("_at", "_deadlines", "_joined", "_loop", "_timer", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[T | None], None] = {}
        """Futures in the order in which they joined, in which they also get their results."""
        self._deadlines: list[tuple[float, int, asyncio.Future[T | None]]] = []
        """A heap. The number keeps futures from being compared."""
        self._joined = 0
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, deadline: float) -> asyncio.Future[T | None]:
        """Return a future that gets None at ``deadline`` (``time.monotonic``), unless it is done before or has left."""
        future: asyncio.Future[T | None] = self._loop.create_future()
        self._waiting[future] = None
        self._joined += 1
        heappush(self._deadlines, (deadline, self._joined, future))
        if deadline < self._at:
            self._arm(deadline)
        return future

    def leave(self, future: asyncio.Future[T | None]) -> None:
        """Remove a future of ``join``; call this once for each future, also for one that is done."""
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

        None of them times out after that. Each iteration of the loop handles ``RESOLVED_PER_TURN`` futures, so that other
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
        # In no caller's context, since each scan sets the timer of the next.
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
    """Wait until ``future`` is done or ``deadline`` (``time.monotonic``) has come; return whether it is done.

    The future's outcome is neither read nor raised, and cancelling the wait does not cancel the future. Meant for a future with
    few waiters: the end of each wait costs a pass over all of them.
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
    """Shared work that runs.

    Attributes:
        waiting: The futures of its callers, which get True when it has ended.
    """

    __slots__ = ("_error", "_result", "task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting: WaitTable[bool] = WaitTable()
        self._error: BaseException | None = None
        self._result: T | None = None

    async def wait(self, deadline: float) -> T:
        """Return the result of the work.

        Always suspends.

        Raise a copy of the error of the work; TimeoutError at ``deadline`` (``time.monotonic``); ClientStateError if the work
        was cancelled, as by ``SingleFlight.close``.
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
"""Type of ``Flight.wait``, and of functions like it that end for more reasons (``StopScope.wait``)."""


class SingleFlight(Generic[T]):
    """Runs shared work by key, such as a connect or a look-up: the first caller starts a Task, later ones join it.

    Each caller waits with its own deadline; neither a deadline nor a cancelled caller stops the work. Joining and leaving stay
    cheap with 65,535 callers. Each caller gets its own copy of an error: a shared instance would collect all their tracebacks.
    ``name`` is part of the tasks' names; they run in no caller's context.
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
        """Return the work ``key``, started with ``make()`` unless it runs.

        Work that has ended in this turn of the loop is not joined: its result may be older than the caller's question. Where no
        caller waits, an error of the work goes to the loop's exception handler, unless it is a RocketMQError or TimeoutError.

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
        """Return the number of callers that wait for the work ``key``; 0 if it does not run."""
        flight = self._flights.get(key)
        return 0 if flight is None else len(flight.waiting)

    async def join(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """Join the work of a key, or start it: ``start``, then ``Flight.wait``."""
        return await self.start(key, make).wait(deadline)

    def close(self) -> list[asyncio.Task[T]]:
        """Cancel all work and fail its callers; return the tasks, which end later."""
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
    """Runs waits that ``stop()`` ends; ``error`` makes the error that current and later waits then raise.

    Waits for a flight, of which there may be thousands, share its table. Any other wait is a cancellation scope that ``stop()``
    triggers; other cancellations pass through.
    """

    __slots__ = ("_error", "_futures", "_scopes", "_stopped")

    def __init__(self, error: Callable[[], ClientStateError]) -> None:
        self._error = error
        self._scopes: OrderedSet[asyncio.Timeout] = OrderedSet()
        self._futures: dict[asyncio.Future[bool | None], None] = {}
        """Futures in the tables of flights."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._scopes) + len(self._futures)

    async def wait(self, flight: Flight[T], deadline: float) -> T:
        """Wait for a flight as ``Flight.wait`` does; raise the error of the scope if the stop comes first."""
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
        """Await ``awaitable``; cancel it and raise the error if the stop comes first."""
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
            del scope  # it references the task, which keeps the error, whose traceback has this frame
        raise self._error()  # here: as its context the TimeoutError would have a frame that references the scope

    def stop(self) -> None:
        """End all waits. A second call has no effect."""
        self._stopped = True
        for future in self._futures:
            if not future.done():
                future.set_result(False)
        scopes, self._scopes = self._scopes, OrderedSet()
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())


# -- blocks


class Startable(ABC):
    """Base class of objects that an ``async with`` block starts, and stops at its end, also after an error."""

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

    The first failure cancels the rest and is raised.
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
        error = without_frames(failures).exceptions[0]  # the group's own frames reference what they raise
    except asyncio.CancelledError as cancelled:
        error = without_frames(cancelled)
    if error is None:
        return results
    try:
        raise error
    finally:
        del error, group  # the traceback has this frame, and the group references the task, which keeps the error
