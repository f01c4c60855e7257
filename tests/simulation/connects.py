"""Counts the connects of client machines, to find those that do not pause between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Connects"]

MOST: Final = 12
"""Connects of one machine to one address within ``WINDOW`` that are no flood; pauses that double from 50 ms on allow five."""
WINDOW: Final = 1.0
"""Seconds."""


class Connects:
    """Counts connects, and finds floods of them.

    ``now``: returns the seconds since the beginning of the simulation. ``found``: a line for each flood.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.found: list[str] = []
        self._now = now
        self._newest: dict[tuple[str, str], deque[float]] = {}

    def add(self, machine: str, address: str) -> None:
        """Counts a connect that ``machine`` begins now."""
        newest = self._newest.setdefault((machine, address), deque(maxlen=MOST + 1))
        now = self._now()
        newest.append(now)
        if len(newest) > MOST and now - newest[0] < WINDOW:
            self.found.append(
                f"storm: {machine} began {len(newest)} connects to {address} within {now - newest[0]:.3f} s ({now:.6f} s)"
            )
            newest.clear()
