"""Work around limits of asyncio's event loops: a lock for several loops, the close of servers, and programs on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeVar


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


async def close_servers(servers: Collection[asyncio.Server]) -> None:
    """Close listening sockets.

    On a ``SelectorEventLoop`` it stops accepting connections one turn of the loop before.

    That loop loses a connection that was accepted in the turn in which its server is closed: the socket stays open until garbage
    is collected (CPython issue 109564).
    """
    loop = asyncio.get_running_loop()
    try:
        if isinstance(loop, asyncio.SelectorEventLoop):
            for server in servers:
                for listener in server.sockets:
                    loop.remove_reader(listener.fileno())
            await asyncio.sleep(0)
    finally:  # a caller that is cancelled here must not leave ports open on which nothing accepts
        for server in servers:
            server.close()


T = TypeVar("T")


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run ``coro`` to its end on uvloop where that is installed, else on asyncio, and return its result.

    Raises what ``coro`` raises, RuntimeError while an event loop runs in this thread, and ValueError or TypeError for an object
    that is not a coroutine.
    """
    if iscoroutinefunction(coro):
        raise ValueError(
            f"run() takes a coroutine, not the function {coro.__name__}: write run({coro.__name__}()), which calls it"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        name = "main"
        if asyncio.iscoroutine(coro):
            name = getattr(coro, "__name__", name)
            coro.close()  # it will not run, and a warning would say so once more
        raise RuntimeError(
            f"an event loop runs in this thread already, as in a notebook: write `await {name}()` in place of run()"
        )
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coro)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coro)
