"""The limit of pulled messages, in messages and bytes, for all queues of a consumer."""

# A queue reserves room before a pull and ends the reservation after the answer; each message of the answer takes room until it
# is settled or dropped. Queues that wait get room in the order of their requests. A pull of a queue that is read to its end
# reserves nothing: it asks for one message, so that messages of other queues which fill the buffer do not delay it. When room
# is short, a pull asks for about its queue's share: a larger pull might never fit while handlers are blocked.

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

__all__ = ["LARGE_PULL", "Budget"]

LARGE_PULL: Final = 4 * 1024 * 1024
"""Bytes that a pull reserves, unless room is short, before the size of the queue's messages is known."""


class Budget:
    """The messages and bytes that a consumer may hold.

    ``messages``, ``size``: number and bytes of the messages that are buffered or being handled, without reservations.
    ``full``: called when a queue has to wait.
    """

    __slots__ = ("_max_messages", "_max_size", "_reserved", "_reserved_size", "_waiting", "full", "messages", "size")

    def __init__(self, max_messages: int, max_size: int) -> None:
        self._max_messages = max_messages
        self._max_size = max_size
        self._reserved = self._reserved_size = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        self.messages = 0
        self.size = 0
        self.full: Callable[[], None] = _nothing

    @property
    def waiting(self) -> int:
        """Number of queues that wait for room."""
        return len(self._waiting)

    def reserve_now(self, messages: int, size: int) -> bool:
        """Reserves room for a pull if there is enough and no queue waits; returns whether it did."""
        if self._waiting or not self._fits(messages, size):
            return False
        self._reserve(messages, size)
        return True

    def share(self, messages: int, mean_size: float | None, queues: int) -> tuple[int, int]:
        """Returns the number of messages that one of ``queues`` queues may pull when room is short, at most ``messages`` and at
        least one, and the bytes to reserve for them.

        ``mean_size``: mean bytes of the queue's messages; None before the first message.
        """
        size = self._max_size // queues
        messages = max(min(messages, self._max_messages // queues), 1)
        if mean_size is None:
            return messages, max(min(LARGE_PULL, self._max_size // 4), size, 1)
        messages = max(min(messages, int(size / max(mean_size, 1.0))), 1)
        return messages, max(round(mean_size * messages), 1)

    async def reserve(self, messages: int, size: int) -> None:
        """Waits for room for a pull, behind the queues that wait already, and reserves it. An empty buffer has room for any
        pull."""
        if self.reserve_now(messages, size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((messages, size, future))
        self.full()
        self._wake()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.release(messages, size)
            else:
                self._wake()  # queues behind this one may need less
            raise

    def release(self, messages: int, size: int) -> None:
        """Ends a reservation."""
        self._reserved -= messages
        self._reserved_size -= size
        self._wake()

    def take(self, messages: int, size: int) -> None:
        """Takes room for messages that have arrived."""
        self.messages += messages
        self.size += size

    def give(self, messages: int, size: int) -> None:
        """Gives back the room of messages that were settled or dropped."""
        self.messages -= messages
        self.size -= size
        if self._waiting:
            self._wake()

    def _reserve(self, messages: int, size: int) -> None:
        self._reserved += messages
        self._reserved_size += size

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting and (waiting[0][2].done() or self._fits(*waiting[0][:2])):
            messages, size, future = waiting.popleft()
            if not future.done():
                self._reserve(messages, size)
                future.set_result(None)

    def _fits(self, messages: int, size: int) -> bool:
        taken, taken_size = self.messages + self._reserved, self.size + self._reserved_size
        if not taken and not taken_size:
            return True
        return taken + messages <= self._max_messages and taken_size + size <= self._max_size


def _nothing() -> None:
    """Does nothing: the default of ``Budget.full``."""
