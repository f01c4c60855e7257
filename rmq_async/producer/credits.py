"""How many messages and bytes may be accepted and not finished: integers, with a queue of waiters only when exhausted.

A free credit costs two comparisons and two subtractions (0.1 us); a semaphore costs six times that. The hot path of ``send``
does them itself, on the open attributes, as ``try_take`` and ``give_back`` do. First come, first served:
while any call waits, none passes it. Credits come back in one place, ``give_back``, once per call.

``flush`` must wait for what was accepted *so far*, while new calls go on: every taken credit belongs to an epoch, a flush begins
a new one and waits for the older ones to empty. Only older ones are counted, from the moment they end: of the one that goes on,
what is taken is what is not free.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from ..errors import BackpressureError, RocketMQError
from ..transport import WaitTable, wait_until

__all__ = ["Credits", "Epoch", "finished"]

GIVEN_UP_KEPT: Final = 64
"""Waiters behind others that wait no longer, kept at least: clearing them out costs a pass over all."""


class Epoch:
    """Credits taken between two flushes. ``taken``: those not given back yet, counted once it is over."""

    __slots__ = ("emptied", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.emptied: asyncio.Future[None] | None = None


class _Waiter:
    """``left``: it waits no longer, and has been counted or taken out."""

    __slots__ = ("future", "left", "number", "size")

    def __init__(self, number: int, size: int, future: asyncio.Future[Epoch | None]) -> None:
        self.number, self.size, self.future = number, size, future
        self.left = False


class Credits:
    """``limit`` messages and ``byte_limit`` bytes at a time; ``what`` names them in errors.

    A call that asks for more than a whole limit passes when nothing else is under way.
    """

    __slots__ = (
        "_byte_limit", "_epochs", "_given_up", "_limit", "_refusal", "_table", "_waiters", "_what",
        "contended", "epoch", "free", "free_bytes", "watched",
    )  # fmt: skip

    def __init__(self, what: str, limit: int, byte_limit: int) -> None:
        self._what = what
        self._limit = self.free = limit
        self._byte_limit = self.free_bytes = byte_limit
        self.contended = False
        """A call waits for credits, or no call gets any more."""
        self.watched = False
        """A call or a flush waits for credits that come back."""
        self._waiters: deque[_Waiter] = deque()
        self._given_up = 0
        """Of ``_waiters``: those that wait no longer, and have been counted."""
        self._table: WaitTable[Epoch] | None = None
        self.epoch = Epoch()
        self._epochs: list[Epoch] = [self.epoch]
        self._refusal: Callable[[], RocketMQError] | None = None

    def __repr__(self) -> str:
        taken, bytes_taken = self._limit - self.free, self._byte_limit - self.free_bytes
        bytes_told = f"{bytes_taken} of {self._byte_limit} bytes"
        return f"<Credits {self._what}: {taken} of {self._limit}, {bytes_told}, {self.waiting} wait>"

    @property
    def taken(self) -> int:
        """Messages accepted and not finished."""
        return self._limit - self.free

    @property
    def taken_bytes(self) -> int:
        return self._byte_limit - self.free_bytes

    @property
    def waiting(self) -> int:
        return len(self._waiters) - self._given_up

    def try_take(self, number: int, size: int) -> Epoch | None:
        """Credits at once, or None when they are exhausted or others wait for them."""
        free, free_bytes = self.free - number, self.free_bytes - size
        if self.contended or ((free < 0 or free_bytes < 0) and not self._fits(number, size)):
            return None
        self.free, self.free_bytes = free, free_bytes
        return self.epoch

    async def take(self, number: int, size: int, deadline: float) -> Epoch:
        """Credits, waiting for them until ``deadline`` (monotonic); then BackpressureError."""
        epoch = self.try_take(number, size)
        if epoch is not None:
            return epoch
        if self._refusal is not None:
            raise self._refusal()
        if self._table is None:
            self._table = WaitTable()
        future = self._table.join(deadline)
        waiter = _Waiter(number, size, future)
        self._waiters.append(waiter)
        self._mark()
        started = monotonic()
        try:
            epoch = await future
            if epoch is not None:
                return epoch
        except asyncio.CancelledError:
            if (
                future.done()
                and not future.cancelled()
                and future.exception() is None
                and (epoch := future.result()) is not None
            ):
                self.give_back(epoch, number, size)
            raise
        finally:
            self._table.leave(future)
            self._drop(waiter)
            del future, waiter  # an error that the future holds has this frame in its traceback
        raise BackpressureError(
            f"no room for {number} more {self._what} within {monotonic() - started:.3g} s: {self.taken} of {self._limit} messages, "
            f"{self.taken_bytes} of {self._byte_limit} bytes are unfinished"
        )

    def give_back(self, epoch: Epoch, number: int, size: int) -> None:
        self.free += number
        self.free_bytes += size
        if self.watched:
            self.came_back(epoch, number)

    def came_back(self, epoch: Epoch, number: int) -> None:
        """Credits of ``epoch`` are free again while somebody waits for that."""
        if epoch is not self.epoch:
            epoch.taken -= number
            if not epoch.taken and epoch.emptied is not None and not epoch.emptied.done():
                epoch.emptied.set_result(None)
        self._serve()

    def so_far(self) -> list[Epoch]:
        """What is accepted and not finished at this moment; what is accepted from now on belongs to another epoch."""
        ending = self.epoch
        ending.taken = self.taken - sum([epoch.taken for epoch in self._epochs[:-1]])
        older = [epoch for epoch in self._epochs if epoch.taken]
        self.epoch = Epoch()
        self._epochs = [*older, self.epoch]
        self._mark()
        return older

    async def wait_idle(self, deadline: float) -> bool:
        """Waits until everything accepted before this call is finished; returns whether it was by ``deadline``."""
        return await finished(self.so_far(), deadline)

    def refuse(self, error: Callable[[], RocketMQError]) -> None:
        """From now on no call gets a credit: those that wait and all that come get an error of their own."""
        self._refusal = error
        self.contended = True
        while self._waiters:
            waiter = self._waiters.popleft()
            waiter.left = True
            if not waiter.future.done():
                waiter.future.set_exception(error())
        self._given_up = 0
        self._mark()

    def _fits(self, number: int, size: int) -> bool:
        free, free_bytes = self.free, self.free_bytes
        return (free >= number or free == self._limit) and (free_bytes >= size or free_bytes == self._byte_limit)

    def _take(self, number: int, size: int) -> Epoch:
        self.free -= number
        self.free_bytes -= size
        return self.epoch

    def _serve(self) -> None:
        waiters = self._waiters
        while waiters:
            waiter = waiters[0]
            if waiter.future.done():
                if waiter.left:
                    self._given_up -= 1
                waiter.left = True
            elif self._fits(waiter.number, waiter.size):
                waiter.left = True
                waiter.future.set_result(self._take(waiter.number, waiter.size))
            else:
                break
            waiters.popleft()
        self._mark()

    def _mark(self) -> None:
        waiting = bool(self._waiters)
        self.contended = waiting or self._refusal is not None
        self.watched = waiting or any(epoch.taken for epoch in self._epochs[:-1])

    def _drop(self, waiter: _Waiter) -> None:
        if waiter.left:
            return
        waiter.left = True
        waiter.future.cancel()  # where it was this caller that was cancelled, it is already
        self._given_up += 1
        if self._waiters[0] is waiter:
            self._serve()
        elif self._given_up > GIVEN_UP_KEPT + len(self._waiters) // 2:
            self._waiters = deque(each for each in self._waiters if not each.left)
            self._given_up = 0


async def finished(epochs: Sequence[Epoch], deadline: float) -> bool:
    """Waits until everything accepted in these epochs is finished; returns whether it was by ``deadline`` (monotonic)."""
    for epoch in epochs:
        if not epoch.taken:
            continue
        if epoch.emptied is None or epoch.emptied.done():
            epoch.emptied = asyncio.get_running_loop().create_future()
        if not await wait_until(epoch.emptied, deadline):
            return False
    return True
