"""Iterators over a member's messages, one by one or in batches."""

# A message in hand belongs to its iterator. Asking for the next message settles it, unless it has a mark. When the iterator is
# closed or garbage-collected, the message goes back into the buffer without a task. Generator functions could not do this: the
# loop would close a collected generator later, and a cancelled step would end the generator.

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Generic, Self, TypeVar

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt

from ...errors import WrongLoopError
from ...transport import generation
from ..outcome import Batch
from .in_hand import ByHand, InHand

T = TypeVar("T")


class _Iterator(AsyncGenerator[T, None], Generic[T]):
    """Base class of the iterators.

    Args:
        room_of: Returns the ByHand of the running consumer. It is called at the first step, and raises ClientStateError if no
            consumer runs.
        limit: Maximum number of messages in a step.
        wait: Maximum seconds for which the first message of a step waits for more.
    """

    def __init__(self, room_of: Callable[[], ByHand], limit: int = 1, wait: float = 0.0) -> None:
        self._room_of = room_of
        self._limit = limit
        self._wait = wait
        self._room: ByHand | None = None
        self._hand: InHand | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()
        self._generation = generation()
        self._asking = False
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "begun" if self._room is not None else "new"
        return f"<{type(self).__name__} {state}>"

    @abstractmethod
    def _given(self, hand: InHand) -> T:
        """Return the item that the iterator yields: a message or a batch."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._closed:
            raise StopAsyncIteration
        if self._asking:
            raise RuntimeError("another task waits for the next message of this iterator; give each task its own iterator")
        self._asking = True
        try:
            room = self._begun()
            hand, self._hand = self._hand, None
            if hand is not None:
                room.finish(hand)
            self._hand = hand = await room.ask(self._limit, self._wait, iterated=True)
        finally:
            self._asking = False
        if hand is None:
            self._closed = True
            raise StopAsyncIteration
        return self._given(hand)

    def _begun(self) -> ByHand:
        room = self._room
        if room is None:
            room = self._room = self._room_of()
            self._loop, self._thread, self._generation = asyncio.get_running_loop(), threading.get_ident(), generation()
        room.check()
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(
                "this iterator belongs to another event loop; use it there, or start a consumer on this loop and iterate over it"
            )
        return room

    async def asend(self, value: None, /) -> T:
        """Return the next item, as ``anext`` does.

        Raises:
            TypeError: For a value other than None.
        """
        if value is not None:
            raise TypeError(f"an iterator over messages takes no values, but {shown(value)} was sent; use anext()")
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> T:
        """Close the iterator as ``aclose`` does, and raise the exception."""
        await self.aclose()
        raise typ

    async def aclose(self) -> None:
        """End the iterator. Messages of its last step that are still in hand go back into the buffer.

        Raises:
            RuntimeError: If a task waits for the next message.
        """
        if self._asking:
            raise RuntimeError("a task waits for the next message of this iterator; cancel it, then close the iterator")
        self._closed = True
        self._release()

    def _release(self) -> None:
        hand, self._hand = self._hand, None
        if hand is not None and hand.left and self._room is not None:
            self._room.put_back(hand)

    def __del__(self) -> None:
        hand, loop = getattr(self, "_hand", None), self._loop if hasattr(self, "_loop") else None
        if hand is None or loop is None or loop.is_closed() or self._generation != generation():
            return
        assert self._room is not None
        if threading.get_ident() == self._thread:
            self._release()
        else:  # the garbage collector may run in any thread
            loop.call_soon_threadsafe(self._room.put_back, hand)


class MessageIterator(_Iterator[MessageExt]):
    """Hands out one message after the other. ``Consumer.__aiter__`` documents the errors."""

    def _given(self, hand: InHand) -> MessageExt:
        return hand.delivery.messages[0]


class BatchIterator(_Iterator[Batch]):
    """Hands out batches. ``Consumer.batches`` documents the errors."""

    def _given(self, hand: InHand) -> Batch:
        return hand.batch
