"""Counts the connects of client processes: a client with pauses never floods a server with connects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["Connects"]

MOST: Final = 12
"""Connects of one process to one address within ``WINDOW``: pauses from 50 ms on that double make five."""
WINDOW: Final = 1.0


class Connects:
    """The counts of connects, by which a flood is found.

    ``now``: returns the seconds since the beginning of the simulation. ``found``: a line for each flood.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.found: list[str] = []
        self._now = now
        self._newest: dict[tuple[str, str], deque[float]] = {}

    def add(self, machine: str, address: str) -> None:
        """Counts a connect that begins."""
        newest = self._newest.setdefault((machine, address), deque(maxlen=MOST + 1))
        now = self._now()
        newest.append(now)
        if len(newest) > MOST and now - newest[0] < WINDOW:
            self.found.append(
                f"storm: {machine} began {len(newest)} connects to {address} within {now - newest[0]:.3f} s ({now:.6f} s)"
            )
            newest.clear()
