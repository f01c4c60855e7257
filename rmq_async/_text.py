"""Text for logs and errors."""

from __future__ import annotations

from typing import Final

from rmq_protocol.errors import printable

__all__ = ["is_power_of_two", "printable", "without_faq"]

_FAQ: Final = "See http"


def is_power_of_two(count: int) -> bool:
    """Returns whether a repeated event is logged: its first, second, fourth, eighth, ... occurrence."""
    return count & (count - 1) == 0


def without_faq(remark: str) -> str:
    """Returns a server's remark without its last line, which refers to RocketMQ's questions and answers."""
    return remark.partition(_FAQ)[0].rstrip()
