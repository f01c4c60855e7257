"""Credits limit the messages and bytes that are accepted but not finished.

The free credits are two integers (messages and bytes); calls wait only when they are exhausted. For speed, ``send`` inlines
``try_take`` and ``give_back`` on the public attributes. Waiting calls are served first come, first served, and no call overtakes
them. Each call gives its credits back once.

``flush`` waits for the messages that were accepted *before it was called*, while new calls continue. Therefore every taken credit
belongs to an epoch; a flush begins a new epoch and waits until the older epochs are empty. The credits of an epoch are counted only
after it has ended; until then, they are the taken credits that belong to no older epoch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ... import machine
from ..._asyncio import WaitTable, wait_until
from ...errors import BackpressureError, RocketMQError

GIVEN_UP_KEPT: Final = 64
"""The queue of waiting calls is compacted, in O(n), when more of its entries are abandoned than this number plus half of the
queue."""


class Epoch:
    """The credits that were taken between two flushes.

    Attributes:
        taken: Number of credits that have not been given back. It is counted only after the epoch has ended.
    """

    __slots__ = ("emptied", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.emptied: asyncio.Future[None] | None = None


class _Waiter:
    """A call that waits for credits.

    Attributes:
        left: True after the call was served, refused or abandoned.
    """

    __slots__ = ("future", "left", "number", "size")

    def __init__(self, number: int, size: int, future: asyncio.Future[Epoch | None]) -> None:
        self.number, self.size, self.future = number, size, future
        self.left = False


class Credits:
    """The credits of a producer: at most ``limit`` unfinished messages with at most ``byte_limit`` bytes at a time.

    A call that needs more than a whole limit is served when all of that limit is free; ``free`` and ``free_bytes`` can then be
    below 0.

    Args:
        what: The name of the messages, for error messages.
        options: The names of the settings that contain the limits, for error messages.

    Attributes:
        contended: True if other calls wait, or ``refuse`` was called. Credits can then be obtained only with ``take``.
        watched: True if a waiting call or a flush needs calls of ``came_back``.
    """

    __slots__ = (
        "_byte_limit", "_epochs", "_given_up", "_limit", "_options", "_refusal", "_table", "_waiters", "_what",
        "contended", "epoch", "free", "free_bytes", "watched",
    )  # fmt: skip

    def __init__(self, what: str, limit: int, byte_limit: int, options: str = "the limits") -> None:
        self._what = what
        self._options = options
        self._limit = self.free = limit
        self._byte_limit = self.free_bytes = byte_limit
        self.contended = False
        self.watched = False
        self._waiters: deque[_Waiter] = deque()
        self._given_up = 0  # number of abandoned entries in ``_waiters``
        self._table: WaitTable[Epoch] | None = None
        self.epoch = Epoch()
        self._epochs: list[Epoch] = [self.epoch]
        self._refusal: Callable[[], RocketMQError] | None = None

    def __repr__(self) -> str:
        taken, bytes_taken = self._limit - self.free, self._byte_limit - self.free_bytes
        bytes_text = f"{bytes_taken} of {self._byte_limit} bytes"
        return f"<Credits {self._what}: {taken} of {self._limit}, {bytes_text}, {self.waiting} wait>"

    @property
    def taken(self) -> int:
        """The number of messages that are accepted and not finished."""
        return self._limit - self.free

    @property
    def taken_bytes(self) -> int:
        """The total bytes of the bodies of the messages that are accepted and not finished."""
        return self._byte_limit - self.free_bytes

    @property
    def waiting(self) -> int:
        """The number of calls that wait for credits."""
        return len(self._waiters) - self._given_up

    def try_take(self, number: int, size: int) -> Epoch | None:
        """Take credits for ``number`` messages of ``size`` bytes. Return None if they are exhausted or other calls wait."""
        if self.contended or ((self.free < number or self.free_bytes < size) and not self._fits(number, size)):
            return None
        self.free -= number
        self.free_bytes -= size
        return self.epoch

    async def take(self, number: int, size: int, deadline: float) -> Epoch:
        """Take credits, waiting for them if necessary. Return their epoch, which ``give_back`` needs.

        Raises:
            BackpressureError: If there are not enough credits at ``deadline`` (``time.monotonic``).
            RocketMQError: The error of ``refuse``, if that was called.
        """
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
        started = machine.monotonic()
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
            del future, waiter  # breaks a cycle: an error in the future refers to this frame
        seconds = machine.monotonic() - started
        raise BackpressureError(
            f"no room for {number} more {self._what} within {seconds:.3g} s: {self.taken} of {self._limit} messages, "
            f"{self.taken_bytes} of {self._byte_limit} bytes are unfinished; send fewer at a time or raise {self._options}"
        )

    def give_back(self, epoch: Epoch, number: int, size: int) -> None:
        """Free the credits of a finished call. Call this once per ``take``, with the same numbers."""
        self.free += number
        self.free_bytes += size
        if self.watched:
            self.came_back(epoch, number)

    def came_back(self, epoch: Epoch, number: int) -> None:
        """Wake waiting calls and flushes after ``number`` credits of ``epoch`` were freed. Call this while ``watched`` is true."""
        if epoch is not self.epoch:
            epoch.taken -= number
            if not epoch.taken and epoch.emptied is not None and not epoch.emptied.done():
                epoch.emptied.set_result(None)
        self._serve()

    def so_far(self) -> list[Epoch]:
        """End the current epoch, and return the epochs of all messages that are accepted and not finished."""
        ending = self.epoch
        ending.taken = self.taken - sum([epoch.taken for epoch in self._epochs[:-1]])
        older = [epoch for epoch in self._epochs if epoch.taken]
        self.epoch = Epoch()
        self._epochs = [*older, self.epoch]
        self._mark()
        return older

    async def wait_idle(self, deadline: float) -> bool:
        """Wait until all messages that were accepted before this call are finished. Return False at ``deadline`` (monotonic)."""
        return await finished(self.so_far(), deadline)

    def refuse(self, error: Callable[[], RocketMQError]) -> None:
        """Refuse all further calls. Each waiting call and each later ``take`` raises a new ``error()``."""
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
        waiter.future.cancel()  # no effect if it is done, for example after the caller was cancelled
        self._given_up += 1
        if self._waiters[0] is waiter:
            self._serve()
        elif self._given_up > GIVEN_UP_KEPT + len(self._waiters) // 2:
            self._waiters = deque(each for each in self._waiters if not each.left)
            self._given_up = 0


async def finished(epochs: Sequence[Epoch], deadline: float) -> bool:
    """Wait until all messages of these epochs are finished. Return False at ``deadline`` (monotonic)."""
    for epoch in epochs:
        if not epoch.taken:
            continue
        if epoch.emptied is None or epoch.emptied.done():
            epoch.emptied = asyncio.get_running_loop().create_future()
        if not await wait_until(epoch.emptied, deadline):
            return False
    return True
