"""Checks of the ``timeout`` argument of calls, and its cap, so that it can be added to a clock."""

from __future__ import annotations

import sys
import warnings
from numbers import Real
from types import FrameType
from typing import Any, Final, cast

from rmq_protocol.errors import shown

FOR_EVER: Final = 10 * 365 * 86400.0
"""Seconds, 10 years: longer timeouts, infinity included, are cut to this."""

MILLISECONDS_FROM: Final = 1000
"""A timeout of this many seconds or more is probably one in milliseconds, which other clients take."""

LONG_INTERVAL: Final = 3601
"""As ``MILLISECONDS_FROM``, for intervals and times of stops, which may be an hour."""

_BETWEEN: Final = frozenset({__name__.partition(".")[0], "asyncio", "contextlib", "dataclasses"})
"""Packages whose frames lie between a caller's line and the check of its argument."""
_warned = False


def checked_timeout(timeout: float, name: str = "timeout") -> float:
    """Return the seconds of a call's budget, at most ``FOR_EVER``.

    Warns as ``warn_of_milliseconds`` does.

    Args:
        name: Name of the argument.

    Raises:
        TypeError: For a value that is not a real number, or is a bool.
        ValueError: For NaN, 0 and less.
    """
    seconds = _number(timeout, name)
    if not seconds > 0:
        raise ValueError(f"{name} must be above 0 seconds, not {shown(timeout)}")
    if seconds >= MILLISECONDS_FROM:
        warn_of_milliseconds(name, timeout)
    return min(seconds, FOR_EVER)


def stop_budget(timeout: float | None, default: float) -> float:
    """Return the seconds that ``stop(timeout)`` may take: ``default`` for None, else at most ``FOR_EVER``.

    Raises and warns as ``checked_timeout`` does, but allows 0.
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
    """Warn (UserWarning) of a time from ``least`` seconds to below ``FOR_EVER``, at the line that called into the package, once
    per process.
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
    """Return the ``stacklevel``, for ``warnings.warn`` in the calling function, of the nearest frame outside ``_BETWEEN``.

    1 if there is none.
    """
    level = 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        level += 1
        frame = frame.f_back
    return level if frame is not None else 1
