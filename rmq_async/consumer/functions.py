"""The names and kinds of users' functions, seen through partials and callable objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from .._text import printable

__all__ = ["error_text", "handler_name", "is_async", "is_generator"]


def error_text(error: BaseException) -> str:
    """Returns the ``repr()`` of an error that a user's function raised, for the log."""
    try:
        return printable(repr(error), 500)
    except Exception:  # noqa: BLE001 - a method of the user
        return f"{type(error).__name__}, whose repr() fails"


def handler_name(handler: Callable[..., object]) -> str:
    """Returns module and name of a function, of the function of a partial, or of the class of a callable object."""
    while isinstance(handler, partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return f"{module}.{name}"


def is_async(handler: Callable[..., object]) -> bool:
    return any(map(inspect.iscoroutinefunction, _functions(handler)))


def is_generator(handler: Callable[..., object]) -> bool:
    """Returns whether a call only makes a generator, and runs nothing."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _functions(handler))


def _functions(handler: Callable[..., object]) -> tuple[object, object]:
    """Returns the function of a partial, and the method that a call of an object runs."""
    while isinstance(handler, partial):
        handler = handler.func
    return handler, getattr(handler, "__call__", None)  # noqa: B004
