"""One look-up for everybody who wants the same thing at the same time.

The first caller starts a Task, the others join it. Each waits with its own deadline on a future of its own, so that joining and
giving up are O(1) with 20,000 waiting; neither a deadline nor a cancelled caller stops the look-up. A failure is handed to each
caller as a copy: one shared instance would gather the traceback of every caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from ..errors import ClientStateError, RocketMQError, own_copy
from ..transport import wait_until

__all__ = ["SingleFlight"]

T = TypeVar("T")


class _Flight(Generic[T]):
    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters: set[asyncio.Future[T]] = set()


class SingleFlight(Generic[T]):
    """Look-ups under way, by key. ``name`` is what their tasks are called."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._flights)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._flights

    def start(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """Begins the look-up unless it is under way. Nobody needs to wait for it, and its failure is nobody's then."""
        self._flight(key, make)

    async def join(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], deadline: float) -> T:
        """The result of the look-up ``key``, which ``make()`` begins unless it is under way.

        Raises what the look-up raised, TimeoutError at ``deadline`` (``time.monotonic``), ClientStateError once closed.
        """
        flight = self._flight(key, make)
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        flight.waiters.add(waiter)
        try:
            if not await wait_until(waiter, deadline):
                raise TimeoutError
            return waiter.result()
        finally:
            flight.waiters.discard(waiter)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # taken, also when this caller was cancelled in the same moment

    def close(self) -> list[asyncio.Task[T]]:
        """Cancels every look-up and fails whoever waits; returns the tasks, which need an iteration of the loop to end."""
        self._closed = True
        flights = list(self._flights.values())
        for flight in flights:
            flight.task.cancel()
            for waiter in flight.waiters:
                if not waiter.done():
                    waiter.set_exception(ClientStateError("the client is stopping"))
        return [flight.task for flight in flights]

    def _flight(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> _Flight[T]:
        if self._closed:
            raise ClientStateError("the client is stopping")
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.get_running_loop().create_task(make(), name=f"rmq_async {self._name} {key}")
            self._flights[key] = flight = _Flight(task)
            task.add_done_callback(lambda _: self._landed(key, flight))
        return flight

    def _landed(self, key: Hashable, flight: _Flight[T]) -> None:
        del self._flights[key]
        task = flight.task
        error: BaseException | None
        if task.cancelled():
            error = ClientStateError("the client is stopping")
        else:
            error = task.exception()
            if error is not None and not isinstance(error, RocketMQError) and not flight.waiters:
                task.get_loop().call_exception_handler({"message": f"{task.get_name()} failed", "exception": error})
        for waiter in flight.waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(task.result())
            else:
                waiter.set_exception(own_copy(error))
