"""Removes the tracebacks of errors that are stored, and copies errors that several callers get. A traceback keeps its frames and
their variables alive.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from .errors import RocketMQError

Error = TypeVar("Error", bound=BaseException)


def own_copy(error: BaseException) -> BaseException:
    """Return a copy of the error, without its traceback, for one of several callers. A shared error would collect the tracebacks of
    all callers.
    """
    twin: BaseException
    if isinstance(
        error, RocketMQError
    ):  # the same as copy.copy() at a third of the cost, because thousands may share one error
        make, given = error.__reduce__()
        twin = make(*given)
    else:
        twin = copy.copy(error)
    if (notes := getattr(error, "__notes__", None)) is not None:
        twin.__notes__ = list(notes)
    twin.__cause__ = error.__cause__
    twin.__suppress_context__ = error.__suppress_context__
    return twin


def drop_frames(error: BaseException) -> None:
    """Remove the tracebacks of an error and of all errors that it references: causes, contexts and the members of groups."""
    left, seen = list[BaseException | None]([error]), set[int]()
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            left += (each.__cause__, each.__context__)
            if isinstance(each, BaseExceptionGroup):
                left += each.exceptions


def without_frames(error: Error) -> Error:
    """Remove the error's traceback and a suppressed context, and return the error itself. Otherwise, a stored error would keep its
    frames alive, and the frames would keep the error alive.
    """
    error.__traceback__ = None
    if error.__suppress_context__:
        error.__context__ = None
    return error
