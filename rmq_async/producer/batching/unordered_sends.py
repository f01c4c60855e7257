"""Unordered sends of a producer with batching that do not take the fast path: from the call to the gathering of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties

from ...results import SendResult
from ..admission import Credits
from ..routing import MessageGatherer, Router
from ..send_async import AsyncSend
from .batcher import Batcher

__all__ = ["UnorderedSends"]


class UnorderedSends:
    """Puts the unordered calls of one producer into the gatherings of their topics."""

    __slots__ = ("_batcher", "_credits", "_encoder", "_router")

    def __init__(self, credits: Credits, router: Router, batcher: Batcher) -> None:
        self._credits = credits
        self._router = router
        self._batcher = batcher
        self._encoder = batcher.encoder

    def size(self, message: Message) -> int:
        """Returns the message's bytes in a batch; 0 if it is sent alone. Raises InvalidMessageError for invalid properties."""
        if (
            len(message.body) >= self._encoder.compress_over
            or message.delay_level
            or message.delay is not None
            or message.deliver_at is not None
            or type(message.body) is not bytes
            or message.topic.startswith(RETRY_TOPIC_PREFIX)
        ):
            return 0
        properties = message_properties(message, message.unique_id or "0" * self._encoder.ids.length)
        size = BATCH_OVERHEAD + len(message.body) + len(properties.encode())
        return size if size <= self._batcher.max_bytes else 0

    async def send(self, message: Message, size: int, deadline: float) -> SendResult:
        """Sends a message and returns its result. ``size``: the message's bytes in a batch."""
        async with self._credits.hold(1, len(message.body), deadline):
            gathering = await self._gathering(message, deadline)
            future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
            gathering.add(future, message, size, deadline)
            try:
                return await future
            except BaseException:
                gathering.left()
                raise
            finally:
                del future  # breaks the cycle frame -> future -> error -> traceback -> frame

    async def accept(
        self,
        message: Message,
        size: int,
        deadline: float,
        on_success: Callable[[SendResult], object] | None,
        on_error: Callable[[BaseException], object] | None,
    ) -> asyncio.Future[SendResult]:
        """Accepts a ``send_async`` and returns its future."""
        body_size = len(message.body)
        async with self._credits.hold(1, body_size, deadline) as held:
            gathering = await self._gathering(message, deadline)
            accepted = AsyncSend(self._credits, held.transfer(), 1, body_size, on_success, on_error)
        gathering.add(accepted, message, size, deadline)
        accepted.work = gathering
        return accepted.future

    async def _gathering(self, message: Message, deadline: float) -> MessageGatherer:
        topic_queues = self._router.queues_by_topic.get(message.topic) or await self._router.topics.find(
            message.topic, deadline
        )
        if message.wait_store and topic_queues.gathering is not None:
            return topic_queues.gathering
        return self._batcher.in_turn(message.topic, wait_store=message.wait_store)
