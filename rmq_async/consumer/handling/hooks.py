"""The user's hooks around handler calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from ...hooks import defining
from ...tracebacks import without_frames
from ...transport import report
from ..delivery import Call, Delivery

_Method = Callable[[Delivery], object]


class CallHooks:
    """Calls ``before_consume`` and ``after_consume`` of the hooks, in the order of the hooks.

    The methods run in the context (of ``contextvars``) of the call, so a handler sees the context variables that
    ``before_consume`` sets. Of the errors of each method, the first, second, fourth, eighth ... go to the loop's exception
    handler. Every KeyboardInterrupt, SystemExit and similar exception is raised out of the loop instead.
    """

    __slots__ = ("_after", "_before", "_errors")

    def __init__(self, hooks: Iterable[Any]) -> None:
        found = tuple(hooks)
        self._before: tuple[_Method, ...] = defining(found, "before_consume")
        self._after: tuple[_Method, ...] = defining(found, "after_consume")
        self._errors: dict[_Method, int] = {}

    def __bool__(self) -> bool:
        return bool(self._before or self._after)

    def begin(self, call: Call) -> None:
        delivery = Delivery(call)
        for before in self._before:
            try:
                before(delivery)
            except BaseException as error:  # noqa: BLE001 - reported; the message is handled nevertheless
                self._report(before, error)

    def end(self, call: Call, error: BaseException | None, frames: TracebackType | None) -> None:
        """Call the hooks after a handler.

        Args:
            error: The error of the call, or None.
            frames: The traceback of the error when the handler ended. Hooks see it, but the delivery does not keep it.
        """
        if error is not None:
            call.note_error(error.with_traceback(frames))
        delivery = Delivery(call)
        for after in self._after:
            try:
                after(delivery)
            except BaseException as raised:  # noqa: BLE001 - reported; the outcome does not change
                self._report(after, raised)
        if error is not None:
            call.note_error(without_frames(error))

    def _report(self, method: _Method, error: BaseException) -> None:
        count = self._errors[method] = self._errors.get(method, 0) + 1
        if count & (count - 1) == 0 or not isinstance(error, Exception | asyncio.CancelledError):
            report(f"hook {method!r} raised" if count == 1 else f"hook {method!r} raised, {count} times so far", error)
