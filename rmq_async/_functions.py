"""Determines the names, kinds and parameters of users' functions, including partials and callable objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType

from rmq_protocol.errors import printable, shown

from .errors import ConfigError


def check_arguments(name: str, function: Callable[..., object], *given: str) -> None:
    """Raise TypeError for a function that cannot be called with the positional arguments ``given``, because all its calls would
    fail.

    Raise TypeError also for a class whose objects are callable, because each call would only create an object. A function whose
    signature is not known, such as some builtins and wrappers of other packages, is accepted.

    Args:
        name: Name of the option to which the function was passed.
        *given: The names of the arguments.
    """
    if isinstance(function, type) and any("__call__" in vars(each) for each in function.__mro__):
        raise TypeError(f"{name}={shown(function)} is a class whose objects are callable; pass an instance of it")
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        raise TypeError(
            f"{name} is called as {name}({', '.join(given)}), but {handler_name(function)} does not take these arguments: {error}; "
            "change its parameters"
        ) from None


def check_plain(name: str, function: object, *given: str) -> None:
    """Raise ConfigError if ``function`` is not callable, or is a coroutine or generator function, because calls of these do not run
    the body.

    The TypeError of ``check_arguments`` propagates.
    """
    if not callable(function):
        raise ConfigError(f"{name} must be a plain function, not {shown(function)}")
    if is_async(function) or is_generator(function):
        kind = "coroutine" if is_async(function) else "generator"
        raise ConfigError(f"{name} must be a plain function, not the {kind} function {shown(function)}")
    check_arguments(name, function, *given)


def error_text(error: BaseException) -> str:
    """Return the ``repr()`` of an error that a user's function raised, for the log."""
    try:
        return printable(repr(error), 500)
    except Exception:  # noqa: BLE001 - repr() calls a method of the user
        return f"{type(error).__name__}, whose repr() fails"


def handler_name(handler: Callable[..., object]) -> str:
    """Return the module and name of a function, of the function of a partial, or of the class of a callable object."""
    handler = _inner(handler)
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    module = getattr(handler, "__module__", None) or type(handler).__module__
    return f"{module}.{name}"


def is_async(handler: Callable[..., object]) -> bool:
    return any(map(inspect.iscoroutinefunction, _functions(handler)))


def is_generator(handler: Callable[..., object]) -> bool:
    """Return whether a call of ``handler`` only creates a generator, without running the body."""
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _functions(handler))


def _functions(handler: Callable[..., object]) -> tuple[object, object]:
    """Return the function itself (for a partial, its function), and the ``__call__`` method of a callable object."""
    handler = _inner(handler)
    return handler, getattr(handler, "__call__", None)  # noqa: B004


def _inner(function: Callable[..., object]) -> Callable[..., object]:
    while isinstance(function, partial):
        function = function.func
    return function


def _signature(function: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature of a function itself, not of a function that it wraps, because a wrapper may add arguments.

    Return None if the signature is not known.
    """
    inner = _inner(function)
    if hasattr(inner, "__wrapped__") and type(inner) not in (FunctionType, MethodType):
        return None  # such an object shows the signature of the function that it wraps
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None
