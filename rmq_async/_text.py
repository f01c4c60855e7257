"""Helpers for log and error messages."""

from __future__ import annotations

from typing import Final

from rmq_protocol.errors import printable as printable

_FAQ: Final = "See http"


def is_power_of_two(count: int) -> bool:
    """Return whether ``count`` (1 or more) is a power of two. Events that may repeat often are logged only at these counts."""
    return count & (count - 1) == 0


def type_name(value: object) -> str:
    """Return the name of the value's type for an error message. For a class that was passed in place of an object, return "the
    class X".
    """
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def without_faq(remark: str) -> str:
    """Return a server's remark without the link to RocketMQ's FAQ at its end ("See https://...")."""
    return remark.partition(_FAQ)[0].rstrip()
