"""Helpers for settings that are passed as keyword arguments: the error for an unknown keyword, and the list of settings in a
docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import wraps
from inspect import cleandoc
from typing import Any, Final, TypeVar

from rmq_protocol.errors import shown

LONGEST_DEFAULT: Final = 40
"""Maximum number of characters of a default value in the list. For a longer default value, its type is shown."""

Class = TypeVar("Class", bound=type[Any])


def unexpected_keyword(owner: str, name: str, known: Collection[str]) -> TypeError:
    """Return the error for the unknown keyword ``name``. It suggests the most similar name of ``known``, if any.

    Args:
        owner: The name of the function or class that was called.
    """
    like: list[str] = []
    with suppress(ImportError, OSError):  # the import fails if the process cannot open more files
        from difflib import get_close_matches  # imported here, because it is needed only for errors

        like = get_close_matches(name, known, n=1)
    return TypeError(
        f"{owner}() got an unexpected keyword argument {shown(name)}" + (f": did you mean {like[0]}?" if like else "")
    )


def suggests_keywords(cls: Class) -> Class:
    """Make a dataclass's constructor raise the error of ``unexpected_keyword`` for a keyword that is not a field."""
    construct: Callable[..., None] = cls.__init__
    known = [field.name for field in fields(cls)]

    @wraps(construct)
    def checked(self: object, *args: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise unexpected_keyword(cls.__name__, name, known)
        construct(self, *args, **options)

    cls.__init__ = checked
    return cls


def lists_options(*configs: type[Any], leaving_out: Collection[str] = ("namesrv",)) -> Callable[[Class], Class]:
    """Return a decorator that appends the fields of ``configs``, with types and defaults, to the docstring of a class.

    Args:
        leaving_out: Names of fields that are left out.
    """

    def decorate(cls: Class) -> Class:
        if cls.__doc__:  # None under -OO
            lines = [cleandoc(cls.__doc__)]  # without indentation, which the compiler removes only from Python 3.13 on
            for config in configs:
                lines += ["", f"Options that are fields of {config.__name__}, which explains them:", ""]
                lines += [f"    {_described(field)}" for field in fields(config) if field.name not in leaving_out]
            cls.__doc__ = "\n".join(lines)
        return cls

    return decorate


def _described(field: Field[Any]) -> str:
    text = f"{field.name}: {field.type}"
    if field.default is MISSING:
        return text
    default = field.default.__name__ if callable(field.default) else repr(field.default)
    return f"{text} = {default}" if len(default) <= LONGEST_DEFAULT else f"{text} = {type(field.default).__name__}(...)"
