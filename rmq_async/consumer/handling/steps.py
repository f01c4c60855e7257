"""The first step of a handler's coroutine, made without a task of its own, and the steps after it."""

# A call whose handler never waits needs no task of its own: the task makes the next call afterwards. A call that waits keeps
# the task. Each call has its own context (``contextvars``), in which each of its steps runs; the task is the current one in all
# of them, so ``asyncio.timeout``, cancellation and child tasks work as in any task.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any, Final

from ..delivery import CURRENT, Call
from ..held_queue import Waiting
from ..outcome import check_returned

MOST_CALLS: Final = 256
"""Maximum number of calls of one task."""
LONGEST_RUN: Final = 0.005
"""Seconds after which a task begins no further call, so that a slow handler lets the loop go on."""
PROBE_EVERY: Final = 16
"""Number of tasks of a handler whose calls wait, one of which makes the first step itself to see whether calls still wait."""

Started = tuple[Coroutine[Any, Any, object], Any]
"""A coroutine that has waited once, and what it waits for."""


class Pace:
    """The maximum number of calls of one handler that a task makes, one after the other.

    Attributes:
        length: That number; it doubles, up to MOST_CALLS, after each full run in which no call waited, and is one after a call
            that waited.
    """

    __slots__ = ("_ordinary", "length")

    def __init__(self) -> None:
        self.length = 1
        self._ordinary = PROBE_EVERY

    def begins_run(self) -> bool:
        """Return whether the next task makes the first step itself; for a handler that waits, only one task of several does."""
        if self.length > 1:
            return True
        self._ordinary += 1
        if self._ordinary < PROBE_EVERY:
            return False
        self._ordinary = 0
        return True

    def none_waited(self) -> None:
        self.length = min(self.length * 2, MOST_CALLS)

    def one_waited(self) -> None:
        self.length = 1


class Row:
    """Calls that one task makes, one after the other.

    Args:
        most: Maximum number of calls.

    Attributes:
        settled: Messages whose calls have returned.
        done: Calls that have returned.
        ends: Monotonic times at which the calls returned.
        under_way: The call that has not returned, with its message; None if all have.
        rest: An awaitable that ends as that call does.
        has_waited: Whether its handler waits.
    """

    __slots__ = ("done", "ends", "has_waited", "most", "rest", "settled", "under_way")

    def __init__(self, most: int) -> None:
        self.most = most
        self.settled: list[Waiting] = []
        self.done: list[Call] = []
        self.ends: list[float] = []
        self.under_way: tuple[Call, tuple[Waiting]] | None = None
        self.rest: Awaitable[object] | None = None
        self.has_waited = False

    def stop(self, delivery: Call, item: Waiting, rest: Awaitable[object]) -> None:
        self.under_way, self.rest = (delivery, (item,)), rest


def first_step(handler: Callable[..., Any], delivery: Call) -> Started | None:
    """Call the handler in the current context, and make the first step of its coroutine; return None if that was the last step."""
    CURRENT.set(delivery)
    called = handler(delivery.messages[0])
    if type(called) is not CoroutineType:
        called = _awaited(called)
    try:
        return called, called.send(None)
    except StopIteration as end:
        result = end.value
    if result is not None:
        check_returned(handler, result)
    return None


async def _awaited(given: Any) -> object:
    return await given


@coroutine
def drive(context: Context, started: Started) -> Generator[Any, None, object]:
    """Make all further steps of a coroutine in ``context``, as the task asks for them; return its result."""
    called, awaited = started
    del started
    while True:
        thrown = None
        try:
            yield awaited
        except GeneratorExit:
            context.run(called.close)
            raise
        except BaseException as error:  # noqa: BLE001 - the coroutine's own
            thrown = error
        try:
            awaited = context.run(called.send, None) if thrown is None else context.run(called.throw, thrown)
        except StopIteration as end:
            return end.value
        finally:
            thrown = None  # it has this frame in its traceback


async def failed(error: BaseException) -> object:
    """Raise the error of a first step, without the frames of its caller and of ``first_step``."""
    frames = error.__traceback__
    for _ in range(2):
        frames = frames and frames.tb_next
    try:
        raise error.with_traceback(frames)
    finally:
        del error, frames  # it has this frame in its traceback


class _Cancelled:
    """An awaitable that raises CancelledError.

    A coroutine would warn if it was never awaited, as happens in a call whose ``key`` function has failed.
    """

    def __await__(self) -> Generator[Any, None, object]:
        yield from ()
        raise asyncio.CancelledError


def cut_short(delivery: Call) -> Awaitable[object]:
    """End a call that was abandoned, or whose deadline passed, before its first step.

    Return an awaitable in place of its coroutine. The task of an abandoned call is cancelled.
    """
    if delivery.cut and delivery.task is not None:
        delivery.task.cancel()
    return _Cancelled()


async def returned() -> object:
    """Return None; it replaces a coroutine that has returned in its first step."""
    return None
