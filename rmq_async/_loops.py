"""Workarounds for limits of asyncio's event loops: a lock for several loops, closing servers, and running programs on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeVar


class Turns:
    """A lock for an object that may be used on several event loops, one after the other: ``async with turns.here()``.

    An ``asyncio.Lock`` is permanently bound to the first loop on which a task waited for it, so each loop gets a new lock. A task
    that holds the lock of a stopped loop does not block other loops.
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
    """Close servers, so that they accept no more connections.

    On a ``SelectorEventLoop``, stop accepting connections one iteration earlier. That loop loses a connection that was accepted in
    the iteration in which its server is closed: the socket stays open until it is garbage-collected (CPython issue 109564).
    """
    loop = asyncio.get_running_loop()
    try:
        if isinstance(loop, asyncio.SelectorEventLoop):
            for server in servers:
                for listener in server.sockets:
                    loop.remove_reader(listener.fileno())
            await asyncio.sleep(0)
    finally:  # also if the caller is cancelled here: a port must not stay open without accepting connections
        for server in servers:
            server.close()


T = TypeVar("T")


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run ``coro`` until it ends and return its result. Use uvloop if it is installed, otherwise asyncio's event loop.

    Raises:
        RuntimeError: If an event loop already runs in this thread.
        ValueError, TypeError: For an object that is not a coroutine. Errors of ``coro`` also propagate.
    """
    if iscoroutinefunction(coro):
        raise ValueError(
            f"run() takes a coroutine, not the function {coro.__name__}; call the function: run({coro.__name__}())"
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        name = "main"
        if asyncio.iscoroutine(coro):
            name = getattr(coro, "__name__", name)
            coro.close()  # else "was never awaited" would be reported in addition to the error below
        raise RuntimeError(
            f"an event loop already runs in this thread, as in a notebook; write `await {name}()` instead of run()"
        )
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coro)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coro)
