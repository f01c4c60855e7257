"""Checks the ``timeout`` argument of calls, and limits it so that it can be added to a clock's time."""

from __future__ import annotations

import sys
import warnings
from numbers import Real
from types import FrameType
from typing import Any, Final, cast

from rmq_protocol.errors import shown

FOR_EVER: Final = 10 * 365 * 86400.0
"""Seconds (10 years) to which longer timeouts, including infinity, are shortened."""

MILLISECONDS_FROM: Final = 1000
"""Seconds from which a timeout was probably meant in milliseconds, the unit of other clients."""

LONG_INTERVAL: Final = 3601
"""The same threshold for intervals and for ``stop_timeout``, which may be as long as an hour."""

_BETWEEN: Final = frozenset({__name__.partition(".")[0], "asyncio", "contextlib", "dataclasses"})
"""Packages whose frames may be on the stack between the caller's line and the check of its argument."""
_warned = False


def checked_timeout(timeout: float, name: str = "timeout") -> float:
    """Return the timeout in seconds, at most ``FOR_EVER``. Warn if it was probably meant in milliseconds
    (``warn_of_milliseconds``).

    Args:
        name: Name of the argument.

    Raises:
        TypeError: For a value that is not a real number, or is a bool.
        ValueError: For a value that is NaN, 0 or negative.
    """
    seconds = _number(timeout, name)
    if not seconds > 0:
        raise ValueError(f"{name} must be above 0 seconds, not {shown(timeout)}")
    if seconds >= MILLISECONDS_FROM:
        warn_of_milliseconds(name, timeout)
    return min(seconds, FOR_EVER)


def stop_budget(timeout: float | None, default: float) -> float:
    """Return the seconds that ``stop(timeout)`` may take: ``default`` for None, otherwise at most ``FOR_EVER``.

    The errors and the warning are those of ``checked_timeout``, except that 0 is allowed.
    """
    if timeout is None:
        return default
    seconds = _number(timeout, "timeout")
    if not seconds >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {shown(timeout)}")
    if seconds >= MILLISECONDS_FROM:
        warn_of_milliseconds("timeout", timeout)
    return min(seconds, FOR_EVER)


def warn_of_milliseconds(name: str, timeout: float, *, least: float = MILLISECONDS_FROM) -> None:
    """Issue a UserWarning if a time is at least ``least`` and below ``FOR_EVER`` seconds, once per process. The warning points at
    the line that called into the package.
    """
    global _warned
    if _warned or not least <= timeout < FOR_EVER:
        return
    _warned = True
    text = f"{name}={shown(timeout)} is in seconds; if these are milliseconds, give {name}={shown(timeout / 1000)}"
    warnings.warn(text, UserWarning, stacklevel=_callers_level())


def _number(timeout: Any, name: str) -> float:
    kind = type(timeout)
    if kind is float or kind is int:
        return cast(float, timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"{name} must be a number of seconds, not {shown(timeout)}")
    return float(timeout)


def _callers_level() -> int:
    """Return the ``stacklevel`` of the nearest frame outside ``_BETWEEN``, for a call of ``warnings.warn`` in the calling function.

    Return 1 if there is no such frame.
    """
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level += 1
        frame = frame.f_back
    return level if frame is not None else 1
