"""Calls whose order counts line up here while one of them waits: for a credit, a route, a selector.

A call joins the line of its topic when it is made, and leaves it when its queue is chosen and it has its place there. In an empty
line there is no wait. To pass the turn on is O(1); calls that have given up are stepped over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from ..errors import BackpressureError, RocketMQError
from ..transport import wait_until

__all__ = ["Line", "Place"]

LEFT_KEPT: Final = 64
"""Places behind others whose calls have left, kept at least: clearing them out costs a pass over the line."""


class Line:
    """First come, first served; the first of the line is the one whose turn it is."""

    __slots__ = ("_left", "places")

    def __init__(self) -> None:
        self.places: deque[Place] = deque()
        """Those taken, that of the call whose turn it is included."""
        self._left = 0
        """Of ``places``: those whose call has left."""

    def join(self) -> Place:
        place = Place(self)
        self.places.append(place)
        return place

    def fail(self, error: Callable[[], RocketMQError]) -> None:
        """Ends the wait of everybody but the first, with an error for each."""
        for place in self.places:
            if place.waits is not None and not place.waits.done():
                place.waits.set_exception(error())

    def is_first(self, place: Place) -> bool:
        return self.places[0] is place

    def advance(self) -> None:
        """Somebody left: if it was the first, the next one who is still there has its turn."""
        places = self.places
        self._left += 1
        while places and places[0].left:
            places.popleft()
            self._left -= 1
        if self._left > LEFT_KEPT + len(places) // 2:
            self.places = places = deque(place for place in places if not place.left)
            self._left = 0
        if places and (waits := places[0].waits) is not None and not waits.done():
            waits.set_result(None)


class Place:
    """One call's place. ``left``: it is not needed any more. ``waits``: resolved when its turn has come."""

    __slots__ = ("_line", "left", "waits")

    def __init__(self, line: Line) -> None:
        self._line = line
        self.left = False
        self.waits: asyncio.Future[None] | None = None

    async def turn(self, deadline: float) -> None:
        """Waits for those who came before. Raises BackpressureError at ``deadline`` (monotonic)."""
        if self._line.is_first(self):
            return
        self.waits = waits = asyncio.get_running_loop().create_future()
        try:
            if not await wait_until(waits, deadline):
                raise BackpressureError("earlier sends in the same order did not get away in time")
            waits.result()
        finally:
            if not waits.cancel() and not waits.cancelled():
                waits.exception()  # seen, also by a call that was cancelled meanwhile
            self.waits = None
            del waits  # an error that it holds has this frame in its traceback

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self._line.advance()
