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


class StreamQueue:
    """The messages of a lite topic between the consumer, which offers them, and the loop that takes them.

    Args:
        start: The position at which the group begins.
    """

    def __init__(self, lite_topic: str, start: LiteStart) -> None:
        self.lite_topic = lite_topic
        self.start = start
        self.is_open = False
        self._arrived: deque[tuple[MessageExt, asyncio.Future[None]]] = deque()
        self._in_hand: asyncio.Future[None] | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None

    def open(self) -> None:
        self.is_open, self._error = True, None

    def close(self) -> None:
        """Give back all messages that are not settled."""
        self.is_open = False
        for settled in [self._in_hand, *[settled for _, settled in self._arrived]]:
            if settled is not None and not settled.done():
                settled.set_exception(PutBack())
        self._arrived.clear()
        self._in_hand = None
        self._wake()

    def end(self, error: Exception) -> None:
        """Close the queue, because the subscription was lost or the consumer stops. ``take`` raises ``error``."""
        self._error = error
        self.close()

    def lose(self) -> None:
        """End the queue, because another client has subscribed to the lite topic."""
        self.end(
            LiteSubscriptionLostError(
                f"another client of the group has subscribed to lite topic {self.lite_topic}, which ends this stream"
            )
        )

    async def offer(self, message: MessageExt) -> None:
        """Add a message and wait until it is settled. This is the handler of the consumer's messages.

        Raises:
            PutBack: If the stream ends before the message is settled.
        """
        if self._error is not None:
            raise PutBack
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived.append((message, settled))
        self._wake()
        await settled

    async def take(self) -> MessageExt:
        """Settle the last message and return the next one."""
        if self._waiter is not None:
            raise ClientStateError(f"another task waits for the next message of lite topic {self.lite_topic}")
        settled, self._in_hand = self._in_hand, None
        if settled is not None and not settled.done():
            settled.set_result(None)
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if not self.is_open:
                raise ClientStateError(f"the stream of lite topic {self.lite_topic} is not open; use it in async with")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message, self._in_hand = self._arrived.popleft()
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


Subscribe = Callable[[StreamQueue], Awaitable[None]]


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

    def __init__(self, queue: StreamQueue, enter: Subscribe, leave: Subscribe) -> None:
        self.lite_topic = queue.lite_topic
        self._queue = queue
        self._enter = enter
        self._leave = leave

    def __repr__(self) -> str:
        return f"<LiteStream {self.lite_topic} {'open' if self._queue.is_open else 'closed'}>"

    async def __aenter__(self) -> Self:
        """Subscribe to the lite topic. The errors of ``LiteConsumer.subscribe`` propagate."""
        queue = self._queue
        if queue.is_open:
            raise ClientStateError(f"the stream of lite topic {self.lite_topic} is already open; make another one")
        queue.open()  # first, because another client may take over before the brokers have responded
        try:
            await self._enter(queue)
        except BaseException:
            queue.close()
            raise
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
        return await self._queue.take()

    async def aclose(self) -> None:
        """Unsubscribe. A message that is not settled is delivered again to a later subscriber."""
        if self._queue.is_open:
            self._queue.close()
            await self._leave(self._queue)
