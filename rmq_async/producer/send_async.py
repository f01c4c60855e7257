"""Sends that return a future and call callbacks (``send_async``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final, Generic, Protocol

from rmq_protocol.errors import shown

from .._functions import check_arguments, is_async, is_generator
from ..transport import report
from .admission import Credits, Epoch
from .calls import Call, Dispatch, FirstAttempt, Result
from .routing import Target, TopicQueues


class Withdrawable(Protocol):
    """The attempts of an accepted send, which can be abandoned."""

    # This is an object because a bound method would take 80 bytes for each send in flight.

    def left(self) -> None:
        """Abandon the attempts, because the caller cancelled the future."""


class SendFuture(asyncio.Future[Result]):
    """A future that notifies its send immediately when it is cancelled, not one loop iteration later."""

    __slots__ = ("_owner",)  # without a dict, each send in flight takes 150 bytes less

    def __init__(self, owner: AsyncSend[Result]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._owner: AsyncSend[Result] | None = owner

    def cancel(self, msg: Any = None) -> bool:
        owner = self._owner
        if owner is None or owner.ended or not super().cancel(msg):  # ended: a callback, which has the result, calls this
            return False
        owner.cancelled()
        return True

    def let_go(self) -> None:
        """Drop the reference to the send, which has ended. Without a cycle, reference counting frees both."""
        self._owner = None


class AsyncSend(Generic[Result]):
    """An accepted send: its future, its callbacks and its credits.

    When the send ends, it gives its credits back and calls the callback for its outcome. ``drop`` ends it without a callback.

    Args:
        number: Number of messages for which it holds credits.
        size: Number of bytes for which it holds credits.

    Attributes:
        work: The attempts, which are notified when the future is cancelled. None before the attempts begin and after the send has
            ended.
    """

    __slots__ = (
        "_credits",
        "_epoch",
        "_number",
        "_on_error",
        "_on_success",
        "_size",
        "context",
        "ended",
        "future",
        "work",
    )

    def __init__(
        self,
        credit: Credits,
        epoch: Epoch,
        number: int,
        size: int,
        on_success: Callable[[Result], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> None:
        self._credits = credit
        self._epoch = epoch
        self._number = number
        self._size = size
        self._on_success = on_success
        self._on_error = on_error
        # The caller's context, in which callbacks run, and functions of the user in further attempts.
        self.context = copy_context() if on_success is not None or on_error is not None else None
        self.work: Withdrawable | None = None
        self.ended = False  # credits were given back; the callback is running or has run
        self.future: SendFuture[Result] = SendFuture(self)

    def drop(self) -> None:
        """End the send without a callback, because the call that accepted it raises an error."""
        if not self.ended:
            self._end()

    def cancelled(self) -> None:
        """End the send after its future was cancelled."""
        self.ended = True
        if self.work is not None:
            self.work.left()
        self._end()
        if self._on_error is not None:
            self._call_back(self._on_error, asyncio.CancelledError())

    # -- Receiver of the transport

    def done(self) -> bool:
        return self.ended

    def set_result(self, result: Result) -> None:
        if self.ended:
            return
        self._end()
        try:
            if self._on_success is not None:
                self._call_back(self._on_success, result)
        finally:
            self.future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        if self.ended:
            return
        self._end()
        try:
            if self._on_error is not None:
                self._call_back(self._on_error, error)
        finally:
            self.future.set_exception(error)
            if self._on_error is not None:
                self.future.exception()  # marks it as retrieved, because the callback has it

    def _end(self) -> None:
        self.ended = True
        self.work = None
        self.future.let_go()
        self._credits.give_back(self._epoch, self._number, self._size)

    def _call_back(self, callback: Callable[[Any], object], argument: object) -> None:
        try:
            self.context.run(callback, argument)  # type: ignore[union-attr]  # with callbacks there is a context
        except BaseException as error:  # noqa: BLE001 - a callback's error must not affect the send
            report(f"callback {callback!r} of a send raised", error)


MOST_CHECKED: Final = 1024
_checked: set[Hashable] = set()
"""Keys of callbacks that were found valid (``_kind_of``). Callbacks are often made for each send, and checking the parameters of a
callback takes longer than the rest of the send."""


def check_callback(name: str, callback: object) -> None:
    """Check that a callback is valid.

    Raises:
        TypeError: If ``callback`` is neither None nor a plain function that takes one argument. Nothing would await a coroutine,
            and calls with other parameters would fail.
    """
    if callback is None:
        return
    kind = _kind_of(callback)
    if kind is not None and kind in _checked:
        return
    if not callable(callback):
        raise TypeError(f"{name} must be a function, not {type(callback).__name__}")
    if is_async(callback) or is_generator(callback):
        what = "coroutine" if is_async(callback) else "generator"
        raise TypeError(f"{name} must be a plain function, not a {what} function: {shown(callback)}")
    check_arguments(name, callback, "error" if name == "on_error" else "result")
    if kind is not None:
        if len(_checked) >= MOST_CHECKED:
            _checked.clear()
        _checked.add(kind)


def _kind_of(callback: Any) -> Hashable:
    """Return a key that callbacks with the same parameters share. Return None if there is no such key."""
    kind = type(callback)
    if kind is partial:
        inner = None if callback.keywords else _kind_of(callback.func)
        return None if inner is None else (len(callback.args), inner)
    if kind is BuiltinFunctionType:
        owner = type(callback.__self__)
        return None if issubclass(owner, type | ModuleType) else (owner, callback.__name__)
    if kind is not FunctionType and kind is not MethodType:
        kind, callback = MethodType, getattr(kind, "__call__", None)  # noqa: B004
    code = getattr(callback, "__code__", None)
    return None if code is None else (kind, code)


class AsyncAttempt(FirstAttempt[Result]):
    """The attempts of one accepted ``send_async`` or ``send_batch_async``.

    Args:
        accepted: Receives the result or the error.
    """

    __slots__ = ("_accepted",)

    def __init__(
        self, dispatch: Dispatch, call: Call[Result], topic_queues: TopicQueues, target: Target, accepted: AsyncSend[Result]
    ) -> None:
        super().__init__(dispatch, call, topic_queues, target)
        self._accepted = accepted
        accepted.work = self

    def _context(self) -> Context | None:
        return self._accepted.context

    def drop(self) -> None:
        """End the call without a callback, after ``start`` raised an error."""
        self._settled = True
        self._accepted.drop()

    def left(self) -> None:
        """Abandon the attempts, because the future was cancelled."""
        self._settled = True
        if self._connection is not None and self._pending is not None:
            self._connection.requests.forget(self._pending.opaque)
            self._pending = None
            if self._call.outgoing.watch is not None:
                self._call.outgoing.watch.give_up(asyncio.CancelledError())
        if self._task is not None:
            self._task.cancel()
        else:
            self._notify(asyncio.CancelledError())

    def _succeed(self, result: Result) -> None:
        self._accepted.set_result(result)

    def _fail(self, error: BaseException) -> None:
        self._accepted.set_exception(error)

    def _dropped(self) -> None:
        self._accepted.future.cancel()
