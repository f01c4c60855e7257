"""Streams of single lite topics, for consumers without a handler.

A stream takes its messages from the handler calls of the consumer: a call ends when the user asks for the next message, which
settles the message. So leases are extended while the user works on a message.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from rmq_protocol.message import MessageExt

from ...errors import ClientStateError, LiteSubscriptionLostError
from ..outcome import PutBack
from .lite_subscriptions import LiteStart

Subscribe = Callable[["LiteStream"], Awaitable[None]]


class LiteStream:
    """The messages of one lite topic, made by ``LiteConsumer.stream``.

        async with consumer.stream("session-17") as stream:
            async for message in stream:
                ...

    Asking for the next message settles the last one. A message that was not settled is delivered again. ``async with`` subscribes
    to the lite topic and unsubscribes at the end.

    Args:
        enter: Subscribes.
        leave: Unsubscribes.

    Attributes:
        lite_topic: The name of the lite topic.
    """

    def __init__(self, lite_topic: str, start: LiteStart, enter: Subscribe, leave: Subscribe) -> None:
        self.lite_topic = lite_topic
        self.start = start
        self._enter = enter
        self._leave = leave
        self._arrived: deque[tuple[MessageExt, asyncio.Future[None]]] = deque()
        self._in_hand: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._open = False

    def __repr__(self) -> str:
        return f"<LiteStream {self.lite_topic} {'open' if self._open else 'closed'}>"

    async def __aenter__(self) -> Self:
        """Subscribe to the lite topic. The errors of ``LiteConsumer.subscribe`` propagate."""
        if self._open:
            raise ClientStateError(f"the stream of lite topic {self.lite_topic} is already open; make another one")
        await self._enter(self)
        self._open, self._error = True, None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MessageExt:
        """Settle the last message and return the next one.

        Raises:
            LiteSubscriptionLostError: If another client of an exclusive group has subscribed to the lite topic.
            ClientStateError: If the stream is not open, if another task waits for its next message, or if the consumer stops.
        """
        if self._waiter is not None:
            raise ClientStateError(f"another task waits for the next message of lite topic {self.lite_topic}")
        self._settle()
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise ClientStateError(f"the stream of lite topic {self.lite_topic} is not open; use it in async with")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message, self._in_hand = self._arrived.popleft()
        return message

    async def aclose(self) -> None:
        """Unsubscribe. A message that is not settled is delivered again to a later subscriber."""
        if self._open:
            self._open = False
            self._give_back()
            self._wake()
            await self._leave(self)

    async def offer(self, message: MessageExt) -> None:
        """Add a message and wait until it is settled. This is the handler of the consumer's messages.

        Raises:
            PutBack: If the stream ends before the message is settled.
        """
        if not self._open and self._error is not None:
            raise PutBack
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append((message, settled))
        self._wake()
        await settled

    def end(self, error: Exception) -> None:
        """End the stream with an error, because the subscription was lost or the consumer stops."""
        self._error = error
        self._open = False
        self._give_back()
        self._wake()

    def lose(self) -> None:
        """End the stream, because another client has subscribed to the lite topic."""
        self.end(
            LiteSubscriptionLostError(
                f"another client of the group has subscribed to lite topic {self.lite_topic}, which ends this stream"
            )
        )

    def _settle(self) -> None:
        settled, self._in_hand = self._in_hand, None
        if settled is not None and not settled.done():
            settled.set_result(None)

    def _give_back(self) -> None:
        left = [settled for _, settled in self._arrived]
        if self._in_hand is not None:
            left.append(self._in_hand)
        self._arrived.clear()
        self._in_hand = None
        for settled in left:
            if not settled.done():
                settled.set_exception(PutBack())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
