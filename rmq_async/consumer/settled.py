"""Messages whose handler calls have ended, kept for tests that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from rmq_protocol.message import MessageExt

from ..tracebacks import without_frames
from .delivery import Delivery
from .outcome import Outcome

__all__ = ["Settled", "SettledLog"]

MAX_KEPT: Final = 1000
MAX_KEPT_SIZE: Final = 1024 * 1024


class Settled(msgspec.Struct, frozen=True):
    """One attempt of a message that has its outcome. ``error``: why it is not done: the error of its call (raised by the
    handler or by ``key``, or HandlerTimeoutError) or its mark (RetryLater, DeadLetter), without a traceback; None if it is
    done. ``elapsed``: seconds from the beginning of the call, or from the step that handed the message out, to the outcome."""

    message: MessageExt
    outcome: Outcome
    error: BaseException | None
    elapsed: float


class SettledLog:
    """Keeps the first MAX_KEPT messages that no wait has returned, until their bodies have MAX_KEPT_SIZE bytes; more of them
    while a wait needs more. Messages that end while the log is full are only counted.

    ``handled``, ``failed``: numbers of messages that have an outcome other than ABANDONED, without and with an error.
    """

    # To keep the newest messages would cost an eighth of the time of a message, because of misses of the processor's caches.

    def __init__(self) -> None:
        self._kept: deque[Settled] = deque()
        self._size = 0
        self._wanted = 0
        """Messages that a wait needs; they are kept, however large they are."""
        self._full = False
        self._changed = asyncio.Event()
        self.handled = 0
        self.failed = 0

    def add(self, message: MessageExt, outcome: Outcome, error: BaseException | None, elapsed: float) -> None:
        if outcome is Outcome.ABANDONED:
            return
        if error is None:
            self.handled += 1
        else:
            self.failed += 1
        if self._full:
            return
        self._kept.append(Settled(message, outcome, None if error is None else without_frames(error), elapsed))
        self._size += len(message.body)
        self._look()
        self._changed.set()

    def add_done(self, calls: Sequence[Delivery]) -> None:
        """Adds the messages of calls that have returned, one of each."""
        if self._full:
            self.handled += len(calls)
            return
        for delivery in calls:
            self.add(delivery.messages[0], Outcome.DONE, None, delivery.elapsed or 0.0)

    async def wait(self, n: int, timeout: float) -> tuple[Settled, ...]:
        """Returns the next ``n`` messages after those that an earlier wait returned. Raises TimeoutError after ``timeout``
        seconds."""
        kept, self._wanted = self._kept, max(n, self._wanted)
        self._look()
        try:
            async with asyncio.timeout(timeout):
                while len(kept) < n:
                    self._changed.clear()
                    await self._changed.wait()
            taken = tuple(kept.popleft() for _ in range(n))
            self._size -= sum(len(each.message.body) for each in taken)
        finally:
            self._wanted = 0
            self._look()
        return taken

    def _look(self) -> None:
        count = len(self._kept)
        self._full = count >= self._wanted and (count >= MAX_KEPT or self._size >= MAX_KEPT_SIZE)
