"""Text for logs and errors."""

from __future__ import annotations

from rmq_protocol.errors import printable

__all__ = ["is_power_of_two", "printable"]


def is_power_of_two(count: int) -> bool:
    """Returns whether a repeated event is logged: its first, second, fourth, eighth, ... occurrence."""
    return count & (count - 1) == 0
