"""Runs a program on uvloop if it is installed, else on asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from inspect import iscoroutinefunction
from typing import Any, TypeVar

__all__ = ["run"]

T = TypeVar("T")


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Run ``coro`` to its end on uvloop where that is installed, else on asyncio, and return its result.

    Raises what ``coro`` raises, RuntimeError while an event loop runs in this thread, and ValueError or TypeError for an object
    that is no coroutine.
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
