"""How a message without a wish for its queue gets to where it gathers, and its call to the result.

A call that has nothing to wait for, as nearly all, takes the shortest way, in ``Producer.send``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties

from ...results import SendResult
from ..accepted import Accepted
from .gathering import InTurn

if TYPE_CHECKING:
    from ..sender import Sender

__all__ = ["accept_gathered", "send_gathered", "size_in_batch"]


def size_in_batch(sender: Sender, message: Message) -> int:
    """Bytes that the message takes in a batch; 0 for one that goes singly. Raises InvalidMessageError for its properties."""
    if (
        len(message.body) >= sender.encoder.compress_over
        or message.delay_level
        or message.delay is not None
        or message.deliver_at is not None
        or type(message.body) is not bytes
        or message.topic.startswith(RETRY_TOPIC_PREFIX)
    ):
        return 0
    properties = message_properties(message, message.unique_id or "0" * sender.ids.length)
    size = BATCH_OVERHEAD + len(message.body) + len(properties.encode())
    return size if size <= sender.batcher.max_bytes else 0


async def send_gathered(sender: Sender, message: Message, size: int, deadline: float) -> SendResult:
    """A whole awaited call. ``size``: see ``size_in_batch``."""
    credit, body_size = sender.credits, len(message.body)
    epoch = credit.try_take(1, body_size) or await credit.take(1, body_size, deadline)
    try:
        gathering = await _gathering(sender, message, deadline)
        future: asyncio.Future[SendResult] = sender.create_future()
        gathering.add(future, message, size, deadline)
        try:
            return await future
        except BaseException:
            gathering.left()
            raise
        finally:
            del future  # an error that it holds has this frame in its traceback
    finally:
        credit.give_back(epoch, 1, body_size)


async def accept_gathered(
    sender: Sender,
    message: Message,
    size: int,
    deadline: float,
    on_success: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> asyncio.Future[SendResult]:
    """``send_async``."""
    credit, body_size = sender.credits, len(message.body)
    epoch = credit.try_take(1, body_size) or await credit.take(1, body_size, deadline)
    try:
        gathering = await _gathering(sender, message, deadline)
    except BaseException:
        credit.give_back(epoch, 1, body_size)
        raise
    accepted = Accepted(credit, epoch, 1, body_size, on_success, on_error)
    gathering.add(accepted, message, size, deadline)
    accepted.work = gathering
    return accepted.future


async def _gathering(sender: Sender, message: Message, deadline: float) -> InTurn:
    lane = sender.lanes.get(message.topic) or await sender.topics.lane(message.topic, deadline)
    if message.wait_store and lane.gathering is not None:
        return lane.gathering
    return sender.batcher.in_turn(message.topic, wait_store=message.wait_store)
