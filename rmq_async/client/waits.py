"""Waiting that a stop ends at once: a time-out without a time, which knows its own cancellation from anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..errors import ClientStateError

__all__ = ["Waits"]

T = TypeVar("T")


class Waits:
    """Whatever is waited for in here until ``stop``. ``error``: what those are told who wait then, or begin to later."""

    __slots__ = ("_error", "_scopes", "_stopped")

    def __init__(self, error: Callable[[], ClientStateError]) -> None:
        self._error = error
        self._scopes: set[asyncio.Timeout] = set()
        self._stopped = False

    def __len__(self) -> int:
        return len(self._scopes)

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
            if scope.expired():
                raise self._error() from None
            raise
        finally:
            self._scopes.discard(scope)

    def stop(self) -> None:
        """Ends all of it. Harmless the second time."""
        self._stopped = True
        scopes, self._scopes = self._scopes, set()
        for scope in scopes:
            scope.reschedule(asyncio.get_running_loop().time())
