"""Waiting that a stop ends at once.

What thousands of calls wait for at the same time has a place for each in its table (``landed``). Anything else is cancelled by a
time-out without a time, which knows its own cancellation from that of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import ClientStateError
from ..transport import Flight

__all__ = ["Waits"]

T = TypeVar("T")


class Waits:
    """Waits that end at ``stop``. ``error``: makes the error of those that wait then, or begin to later."""

    __slots__ = ("_error", "_joined", "_scopes", "_stopped")

    def __init__(self, error: Callable[[], ClientStateError]) -> None:
        self._error = error
        self._scopes: set[asyncio.Timeout] = set()
        self._joined: dict[asyncio.Future[bool | None], None] = {}
        """Places in the tables of flights."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._scopes) + len(self._joined)

    async def landed(self, flight: Flight[T], deadline: float) -> T:
        """``Flight.wait``, which a stop ends."""
        if self._stopped:
            raise self._error()
        future = flight.waiting.join(deadline)
        self._joined[future] = None
        try:
            over = await future
        finally:
            del self._joined[future]
            flight.waiting.leave(future)
        if over is None:
            raise TimeoutError
        if not over:
            raise self._error()
        return flight.outcome()

    async def unless_stopped(self, waiting: Awaitable[T]) -> T:
        """What ``waiting`` gives or raises; it is cancelled, and the error raised, when the stop comes first."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                if self._stopped:
                    scope.reschedule(0.0)
                else:
                    self._scopes.add(scope)
                return await waiting
        except TimeoutError:
            if not scope.expired():
                raise
        finally:
            self._scopes.discard(scope)
            del scope  # it knows the task, which keeps the error, whose traceback has this frame
        raise self._error()  # here: as a context the TimeoutError has a frame that knows the scope, too

    def stop(self) -> None:
        """Ends all of it. Harmless the second time."""
        self._stopped = True
        for future in self._joined:
            if not future.done():
                future.set_result(False)
        scopes, self._scopes = self._scopes, set()
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())
