"""One accepted ``send_async``, seen from its caller: the future, the callbacks, and the credits it holds until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Generic, Protocol, TypeVar

from ..transport import report
from .credits import Credits, Epoch

__all__ = ["Accepted", "Withdrawable"]

Result = TypeVar("Result")


class Withdrawable(Protocol):
    """What works on an accepted send. An object instead of a function: a bound method takes 80 bytes for each send in flight."""

    def left(self) -> None:
        """The caller waits no longer."""


class _SendFuture(asyncio.Future[Result]):
    """Notifies its send when it is cancelled, at once rather than an iteration later."""

    __slots__ = ("_owner",)  # without a dict, 150 bytes less for each send in flight

    def __init__(self, owner: Accepted[Result]) -> None:
        super().__init__(loop=asyncio.get_running_loop())
        self._owner: Accepted[Result] | None = owner

    def cancel(self, msg: Any = None) -> bool:
        owner = self._owner
        if owner is None or owner.ended or not super().cancel(msg):  # ended: its own callback, which has the result, cancels
            return False
        owner.cancelled()
        return True

    def let_go(self) -> None:
        """Its send is over: without a cycle both are freed as soon as the result is not referenced any more."""
        self._owner = None


class Accepted(Generic[Result]):
    """Its credits are given back, and one of its callbacks called, exactly once.

    ``number`` and ``size``: of credits. ``work``: hears when the future is cancelled; None once the send is over.
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
        self.context = copy_context() if on_success is not None or on_error is not None else None
        """Of the caller, which callbacks run in, and further attempts where functions of users do."""
        self.work: Withdrawable | None = None
        self.ended = False
        """Its credits are back and its callback is being called, or was."""
        self.future: _SendFuture[Result] = _SendFuture(self)

    def drop(self) -> None:
        """The call that accepted it raises: the future is dropped and no callback is called."""
        if not self.ended:
            self._end()

    def cancelled(self) -> None:
        """Somebody cancelled the future."""
        self.ended = True
        if self.work is not None:
            self.work.left()
        self._end()
        if self._on_error is not None:
            self._call_back(self._on_error, asyncio.CancelledError())

    # -- a receiver, as the transport knows them

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
                self.future.exception()  # the callback has it: a future that nobody awaits has nothing to report

    def _end(self) -> None:
        self.ended = True
        self.work = None
        self.future.let_go()
        self._credits.give_back(self._epoch, self._number, self._size)

    def _call_back(self, callback: Callable[[Any], object], argument: object) -> None:
        try:
            self.context.run(callback, argument)  # type: ignore[union-attr]  # there is one where there are callbacks
        except BaseException as error:  # noqa: BLE001 - no message is the worse for it
            report(f"callback {callback!r} of a send raised", error)
