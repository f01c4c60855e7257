"""One piece of work for all callers that want the same thing at the same time: a connect, a look-up.

The first caller starts a Task, the others join it. Each waits with its own deadline in a table of those who wait, so that joining
and giving up are O(1) with 65,535 waiting; neither a deadline nor a cancelled caller stops the work. A failure is handed to each
caller as a copy: one shared instance would gather the traceback of every caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextvars import Context
from typing import Any, Generic, TypeVar, cast

from ..errors import ClientStateError, RocketMQError, own_copy
from .waiting import WaitTable

__all__ = ["Flight", "SingleFlight", "WaitFor"]

T = TypeVar("T")


class Flight(Generic[T]):
    """Work under way. ``waiting``: its callers, whose futures get True when it is over."""

    __slots__ = ("_error", "_result", "task", "waiting")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting: WaitTable[bool] = WaitTable()
        self._error: BaseException | None = None
        self._result: T | None = None

    async def wait(self, deadline: float) -> T:
        """The result of the work. Always suspends.

        Raises what the work raised, TimeoutError at ``deadline`` (``time.monotonic``), ClientStateError where it was closed.
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
        """The result of work that is over, or raises a copy of what it raised."""
        if self._error is not None:
            raise own_copy(self._error)
        return cast(T, self._result)

    def land(self, result: T | None, error: BaseException | None) -> None:
        self._result, self._error = result, error
        self.waiting.resolve(True)


WaitFor = Callable[[Flight[T], float], Awaitable[T]]
"""``Flight.wait``, or what does the same and ends for more reasons."""


class SingleFlight(Generic[T]):
    """Work under way, by key. ``name`` is what its tasks are called; they run in no caller's context."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._flights: dict[Hashable, Flight[T]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    def start(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> Flight[T]:
        """The work ``key``, which ``make()`` begins unless it is under way. Its failure is no caller's unless one waits."""
        if self._closed:
            raise _stopping()
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.get_running_loop().create_task(make(), name=f"rmq_async {self._name} {key}", context=Context())
            self._flights[key] = flight = Flight(task)
            task.add_done_callback(lambda _: self._landed(key, flight))
        return flight

    def waiting(self, key: Hashable) -> int:
        """Callers that wait for the work ``key``; 0 where it is not under way."""
        flight = self._flights.get(key)
        return 0 if flight is None else len(flight.waiting)

    async def join(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """``start`` and ``Flight.wait``."""
        return await self.start(key, make).wait(deadline)

    def close(self) -> list[asyncio.Task[T]]:
        """Cancels all work and fails its callers; returns the tasks, which need an iteration of the loop to end."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            flight.task.cancel()
            flight.land(None, _stopping())
        return [flight.task for flight in flights]

    def _landed(self, key: Hashable, flight: Flight[T]) -> None:
        del self._flights[key]
        task = flight.task
        if task.cancelled():
            flight.land(None, _stopping())
            return
        error = task.exception()
        if error is not None and not isinstance(error, (RocketMQError, TimeoutError)) and not len(flight.waiting):
            task.get_loop().call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})
        flight.land(None if error is not None else task.result(), error)


def _stopping() -> ClientStateError:
    return ClientStateError("the client is stopping")
