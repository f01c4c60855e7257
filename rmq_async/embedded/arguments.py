"""Checks the arguments that a test passes to an embedded server. The checks raise TypeError or ValueError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageQueue

from .clock import Clock

MAX_DELAY: Final = 10 * 365 * 24 * 3600
"""Maximum delay, in seconds, that can be set for a server."""


def check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {shown(value)}")


def check_within(name: str, value: int, least: int, most: int) -> None:
    """Check that a value is a whole number within its range."""
    check_whole(name, value)
    if not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {value}")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, not {shown(value)}")


def check_span(name: str, value: float) -> None:
    """Check that a value is a span of time in seconds."""
    check_number(name, value)
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite, non-negative number of seconds, not {value}")


def check_delay(name: str, seconds: float) -> None:
    check_number(name, seconds)
    if not 0 <= seconds <= MAX_DELAY:
        raise ValueError(f"{name} must be from 0 to {MAX_DELAY} seconds, not {seconds}")


def check_count(n: int) -> None:
    check_whole("n", n)
    if n < 0:
        raise ValueError(f"n must not be negative, it is {n}")


def check_flags(**flags: object) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, not {shown(value)}")


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {shown(value)}")


def check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {shown(value)}")


def check_queue(queue: object) -> None:
    if not isinstance(queue, MessageQueue):
        raise TypeError(f"queue must be a MessageQueue, not {shown(queue)}")


def check_clock(clock: object) -> Clock:
    """Return ``clock``.

    Raises:
        TypeError: If ``clock`` is a class or lacks a method of a ``Clock``.
    """
    if isinstance(clock, type):
        raise TypeError(f"clock must be an object with the methods of a Clock; {shown(clock)} is a class, give an object of it")
    lacking = [name for name in ("now_ms", "call_at") if not callable(getattr(clock, name, None))]
    if lacking:
        raise TypeError(f"clock must have the methods of a Clock; {shown(clock)} lacks {' and '.join(lacking)}")
    return clock  # type: ignore[return-value]
