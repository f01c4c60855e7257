"""Shortens the errors of Spark's workers to one sentence, at the end of Spark's own message.

Spark puts the whole Python traceback of an error into its message. The message of this library's errors suffices, so they are
raised without a traceback, and a setting of Spark's workers hides the rest. A worker reads the setting when it reports an
error, after which it ends.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator
from typing import Final, NoReturn, ParamSpec, TypeVar

from ..errors import RocketMQError

P = ParamSpec("P")
T = TypeVar("T")

HIDING: Final = "SPARK_HIDE_TRACEBACK"
WORKERS: Final = "PYTHON_WORKER_FACTORY_"
"""Prefix of variables that Spark sets only in the environment of its Python workers."""
_ours = re.compile(r"\brmq_(?:async|protocol)(?:\.\w+)*\.\w+Error: ([^\n]*)")


def short_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap ``function`` so that it raises RocketMQError without a traceback."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except RocketMQError as error:
            raised = error
        _raise_short(raised)

    return call


def short_errors_iterated(function: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Wrap a function that returns an iterator, so that the function and the iterator raise RocketMQError without a
    traceback.
    """

    @functools.wraps(function)
    def iterate(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from function(*args, **kwargs)
            return
        except RocketMQError as error:
            raised = error
        _raise_short(raised)

    return iterate


def sentence(error: BaseException) -> str | None:
    """Return the first line of the last RocketMQError in the text of an exception of Spark. Return None if there is no such
    error.
    """
    found = _ours.findall(str(error))
    return found[-1].strip() if found else None


def _raise_short(error: RocketMQError) -> NoReturn:
    if any(name.startswith(WORKERS) for name in os.environ):
        os.environ[HIDING] = "1"
    raise error.with_traceback(None) from None
