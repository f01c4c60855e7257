"""A lock for the starts and stops of an object that may be used on several event loops, one after the other."""

from __future__ import annotations

import asyncio

__all__ = ["Turns"]


class Turns:
    """A lock for an object that may be used on several event loops, one after the other: ``async with turns.here()``.

    An ``asyncio.Lock`` belongs for ever to the first loop on which a task waited for it. A holder on a loop that has stopped
    does not block other loops.
    """

    __slots__ = ("_lock", "_loop")

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def here(self) -> asyncio.Lock:
        """Return the lock of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._lock, self._loop = asyncio.Lock(), loop
        return self._lock
