"""Errors as a data engineer wants to read them: one sentence, at the end of Spark's own.

Spark shows the whole Python traceback of an error inside its own message. What our clients raise is said by its text, so it leaves
without one, by the switch that Spark has for that. Spark's workers look at it when they report an error, and end then.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, ParamSpec, TypeVar

from ..errors import RocketMQError

__all__ = ["plainly", "plainly_iterated", "sentence"]

P = ParamSpec("P")
T = TypeVar("T")

HIDING: Final = "SPARK_HIDE_TRACEBACK"
WORKERS: Final = "PYTHON_WORKER_FACTORY_"
"""What Spark sets in the environment of its Python workers and nowhere else begins so."""
_ours = re.compile(r"\brmq_(?:async|protocol)\.errors\.\w+: ([^\n]*)")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, except that errors of ours lose their traceback."""

    @functools.wraps(function)
    def calling(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RocketMQError as error:
            plain = error
        _leave(plain)

    return calling


def plainly_iterated(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same of a function that returns an iterator, also for what its steps raise."""

    @functools.wraps(function)
    def iterating(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
            return
        except RocketMQError as error:
            plain = error
        _leave(plain)

    return iterating


def sentence(error: BaseException) -> str | None:
    """What one of our errors said inside an exception of Spark; None where it holds none."""
    found = _ours.findall(str(error))
    return found[-1].strip() if found else None


def _leave(error: RocketMQError) -> NoReturn:
    if any(name.startswith(WORKERS) for name in os.environ):
        os.environ[HIDING] = "1"
    raise error.with_traceback(None) from None
