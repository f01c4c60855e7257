"""Times at which faults were under way or felt, and at which processes ended or stood still."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Final

from .group_log import Life

__all__ = ["SHADOW", "Troubles"]

SHADOW: Final = 65.0
"""Seconds for which a fault is felt after its end: locks of queues live for 60 s."""


class Troubles:
    """The times of faults, and those at which processes ended or stood still.

    ``faults``: for each fault the times between which it was under way. ``ends``: times at which processes ended, by machine.
    ``paused``: times between which processes stood still, by machine.
    """

    def __init__(
        self,
        faults: Iterable[tuple[float, float]],
        ends: Mapping[str, Sequence[float]],
        paused: Mapping[str, Sequence[tuple[float, float]]],
    ) -> None:
        self._faults = sorted(faults)
        self._ends = ends
        self._paused = paused

    def felt(self, first: float, last: float, shadow: float = SHADOW) -> bool:
        """Returns whether a fault was under way or felt between two times. ``shadow``: seconds for which one is felt after its
        end."""
        return any(began <= last and ended + shadow >= first for began, ended in self._faults)

    def killed(self, life: Life, since: float) -> float:
        """Returns the first time at or after ``since`` at which the process of a life was killed; infinity if it was not."""
        ends = self._ends.get(life.member, ())
        index = bisect_left(ends, since)
        at = ends[index] if index < len(ends) else inf
        return at if life.ended is None or at <= life.ended else inf

    def away(self, member: str, first: float, last: float) -> bool:
        """Returns whether a member's process ended or stood still between two times."""
        return any(first <= end <= last for end in self._ends.get(member, ())) or any(
            began <= last and ended >= first for began, ended in self._paused.get(member, ())
        )
