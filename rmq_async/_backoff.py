"""Computes pauses between repeated attempts. Each pause is twice as long as the previous one, up to a limit, and is shortened by a
random fraction.

Without the random fraction, clients that fail together would retry together.
"""

from __future__ import annotations

from typing import Final

from . import machine

SPREAD: Final = 0.2
"""The maximum fraction by which a pause is shortened at random."""
MOST_DOUBLINGS: Final = 64
"""The maximum exponent, which keeps ``2 ** failures`` within the range of a float."""


def pause_after(failures: int, first: float, longest: float, luck: float = 1.0) -> float:
    """Return the seconds to pause after ``failures`` (1 or more) failures in a row.

    Args:
        first: Seconds after one failure. Each further failure doubles them.
        longest: Maximum seconds.
        luck: A number from 0 to 1. 1 gives the full pause, and 0 gives four fifths of it.
    """
    doubled: float = first * 2 ** min(failures - 1, MOST_DOUBLINGS)
    return min(longest, doubled) * (1 - SPREAD + SPREAD * luck)


class Backoff:
    """Computes the pauses after failures in a row.

    Args:
        first: Seconds of the pause after one failure.
        longest: Maximum seconds of a pause.
    """

    __slots__ = ("_failures", "_first", "_longest")

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def next(self) -> float:
        """Count a failure. Return the seconds to pause after it."""
        self._failures += 1
        return pause_after(self._failures, self._first, self._longest, machine.random.random())

    def reset(self) -> None:
        """Reset the number of failures, so that the next pause is as long as after the first failure."""
        self._failures = 0
