"""The newest settled messages, for tests that wait for them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

import msgspec

from rmq_protocol.message import MessageExt

from ..tracebacks import without_frames
from .outcome import Outcome

__all__ = ["Settled", "SettledLog"]

MAX_KEPT: Final = 1000
MAX_KEPT_SIZE: Final = 1024 * 1024


class Settled(msgspec.Struct, frozen=True):
    """A message whose handler call has ended. ``error``: that the handler raised, without its frames; None where it returned.
    ``elapsed``: seconds since the call began."""

    message: MessageExt
    outcome: Outcome
    error: BaseException | None
    elapsed: float


class SettledLog:
    """Keeps the newest MAX_KEPT messages, with at most MAX_KEPT_SIZE bytes of bodies. ``handled``, ``failed``: messages whose
    calls returned, or raised, since the start."""

    def __init__(self) -> None:
        self._kept: deque[Settled] = deque()
        self._size = 0
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
        kept = self._kept
        kept.append(Settled(message, outcome, None if error is None else without_frames(error), elapsed))
        self._size += len(message.body)
        while len(kept) > MAX_KEPT or (self._size > MAX_KEPT_SIZE and len(kept) > 1):
            self._size -= len(kept.popleft().message.body)
        self._changed.set()

    async def wait(self, n: int, timeout: float) -> tuple[Settled, ...]:
        """Returns the next ``n`` messages after those that an earlier wait returned. Raises TimeoutError."""
        async with asyncio.timeout(timeout):
            while len(self._kept) < n:
                self._changed.clear()
                await self._changed.wait()
        taken = tuple(self._kept.popleft() for _ in range(n))
        self._size -= sum(len(each.message.body) for each in taken)
        return taken
