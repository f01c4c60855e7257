"""Runs handler coroutines step by step. A step ends when the coroutine waits or returns; the first step needs no separate task."""

# A call whose handler never waits needs no separate task: the task makes the next call afterwards. A call that waits keeps the
# task. Each call has its own context (``contextvars``), in which all its steps run. The task is the current task in all steps, so
# ``asyncio.timeout``, cancellation and child tasks work as in any task.

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
"""Maximum number of calls in one task."""
LONGEST_RUN: Final = 0.005
"""Seconds after which a task begins no further call, so that a slow handler does not hold up the loop."""
PROBE_EVERY: Final = 16
"""For a handler whose calls wait, one of this number of tasks runs the first step itself, to check whether calls still wait."""

Started = tuple[Coroutine[Any, Any, object], Any]
"""A coroutine that has made its first step and waits, and the object that it waits for."""


class Pace:
    """Determines how many calls of one handler a task makes, one after the other.

    Attributes:
        length: The maximum number of calls. It doubles, up to MOST_CALLS, after each full run in which no call waited. After a
            call that waited, it is 1.
    """

    __slots__ = ("_ordinary", "length")

    def __init__(self) -> None:
        self.length = 1
        self._ordinary = PROBE_EVERY

    def begins_run(self) -> bool:
        """Return whether the next task runs the first step itself. For a handler that waits, only one of PROBE_EVERY tasks does."""
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
        under_way: The call that has not returned, with its message; None if all calls have returned.
        rest: An awaitable that replaces the rest of that call and has its result.
        has_waited: Whether the handler of that call waits.
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
    """Call the handler in the current context, and run the first step of its coroutine.

    Return the coroutine and the object that it waits for. Return None if the coroutine returned in that step.
    """
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
    """Run all further steps of a coroutine in ``context``, and return its result. The task that awaits this drives the steps."""
    called, awaited = started
    del started
    while True:
        thrown = None
        try:
            yield awaited
        except GeneratorExit:
            context.run(called.close)
            raise
        except BaseException as error:  # noqa: BLE001 - passed into the coroutine
            thrown = error
        try:
            awaited = context.run(called.send, None) if thrown is None else context.run(called.throw, thrown)
        except StopIteration as end:
            return end.value
        finally:
            thrown = None  # its traceback references this frame


async def failed(error: BaseException) -> object:
    """Raise the error of a first step, without the traceback frames of ``first_step`` and its caller."""
    frames = error.__traceback__
    for _ in range(2):
        frames = frames and frames.tb_next
    try:
        raise error.with_traceback(frames)
    finally:
        del error, frames  # the error's traceback references this frame


class _Cancelled:
    """An awaitable that raises CancelledError.

    It is not a coroutine, because a coroutine would warn if it were never awaited, as in a call whose ``key`` function has failed.
    """

    def __await__(self) -> Generator[Any, None, object]:
        yield from ()
        raise asyncio.CancelledError


def cut_short(delivery: Call) -> Awaitable[object]:
    """End a call that was abandoned, or whose deadline passed, before its first step.

    Cancel the task of an abandoned call. Return an awaitable that replaces the coroutine of the call.
    """
    if delivery.cut and delivery.task is not None:
        delivery.task.cancel()
    return _Cancelled()


async def returned() -> object:
    """Return None. It replaces a coroutine that returned in its first step."""
    return None
