"""Errors as a data engineer wants to read them. Spark shows the whole Python traceback of an error inside its own message; what
our clients raise is said by its text, so it leaves with the one frame that Spark needs, and without what it was caused by."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ..errors import RocketMQError

__all__ = ["plainly", "plainly_iterated"]

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, except that errors of ours lose their traceback."""

    @functools.wraps(function)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RocketMQError as error:
            plain = error.with_traceback(None)
        raise plain from None

    return calling


def plainly_iterated(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same of a function that returns an iterator, also for what its steps raise."""

    @functools.wraps(function)
    def iterating(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
            return
        except RocketMQError as error:
            plain = error.with_traceback(None)
        raise plain from None

    return iterating
