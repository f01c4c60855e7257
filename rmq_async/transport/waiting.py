"""Waiting with a deadline of one's own: for what many wait for (``WaitTable``), or for one future (``wait_until``).

``asyncio.wait_for`` makes a timer for each wait and cancels what it waits for. Here what is waited for belongs to several callers,
so it is never cancelled. When the loop was blocked past a deadline a round of I/O passes before the wait is called late: what is
waited for may already be in the socket.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Final, Generic, TypeVar

__all__ = ["WaitTable", "wait_until"]

BLOCKED_AFTER: Final = 0.1
GRACE: Final = 0.02
SCAN_GRAIN: Final = 0.005
"""Seconds by which near deadlines are judged together."""
AT_ONCE: Final = 256
LEFT_KEPT: Final = 64
"""Entries of futures that are not waited for any more, kept at least: clearing them out costs a pass over the table."""

T = TypeVar("T")


class WaitTable(Generic[T]):
    """Futures with deadlines: one timer for all of them. To join and to leave are O(1).

    A future gets its result from outside, or None at its deadline.
    """

    __slots__ = ("_at", "_deadlines", "_joined", "_loop", "_timer", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[asyncio.Future[T | None], None] = {}
        """In the order in which they joined, which is that of their results."""
        self._deadlines: list[tuple[float, int, asyncio.Future[T | None]]] = []
        """A heap. The number keeps futures from being compared."""
        self._joined = 0
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, deadline: float) -> asyncio.Future[T | None]:
        """A future that is resolved with None at ``deadline`` (``time.monotonic``), unless it is done before or has left."""
        future: asyncio.Future[T | None] = self._loop.create_future()
        self._waiting[future] = None
        self._joined += 1
        heappush(self._deadlines, (deadline, self._joined, future))
        if deadline < self._at:
            self._arm(deadline)
        return future

    def leave(self, future: asyncio.Future[T | None]) -> None:
        """Ends a ``join``; called once for each, also where the future is done."""
        self._waiting.pop(future, None)
        if not self._waiting:
            self._clear()
        elif len(self._deadlines) > LEFT_KEPT + 2 * len(self._waiting):
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._waiting]
            heapify(self._deadlines)

    async def wait(self, deadline: float) -> T | None:
        """The result of a future of one's own; None when ``deadline`` has come first."""
        future = self.join(deadline)
        try:
            return await future
        finally:
            self.leave(future)

    def resolve(self, result: T) -> None:
        """Gives ``result`` to every future in the table, in their order, and to ``AT_ONCE`` of them in one turn of the loop.

        None of them is late any more. The turns between are for what the first ones have begun, and for all else on the loop.
        """
        self._clear()
        for future in [*islice(self._waiting, AT_ONCE)]:
            del self._waiting[future]
            if not future.done():
                future.set_result(result)
        if self._waiting:
            self._loop.call_soon(self.resolve, result)

    # -- inside

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        # In no caller's context, since each scan sets the timer of the next.
        self._timer = self._loop.call_later(max(at - monotonic(), 0.0), self._scan, context=Context())

    def _clear(self) -> None:
        self._deadlines.clear()
        self._at = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _scan(self) -> None:
        if monotonic() - self._at > BLOCKED_AFTER:
            self._timer = self._loop.call_later(GRACE, self._end_late, context=Context())
        else:
            self._end_late()

    def _end_late(self) -> None:
        deadlines, now = self._deadlines, monotonic()
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].done()):
            _, _, future = heappop(deadlines)
            if not future.done():
                future.set_result(None)
        self._at, self._timer = inf, None
        if deadlines:
            self._arm(max(deadlines[0][0], now + SCAN_GRAIN))


async def wait_until(future: asyncio.Future[Any], deadline: float) -> bool:
    """Waits until ``future`` is done or ``deadline`` (``time.monotonic``) has come; returns whether it is done.

    The future's own result or exception is left to the caller. Cancelling the wait leaves the future alone. For a future that few
    wait for: leaving it costs a pass over all who do.
    """
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    def late() -> None:
        nonlocal timer
        if monotonic() - deadline > BLOCKED_AFTER and not waiter.done():
            timer = loop.call_later(GRACE, wake)
        else:
            wake()

    timer = loop.call_later(max(deadline - monotonic(), 0.0), late)
    future.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()
