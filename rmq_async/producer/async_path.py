"""The short path of ``send_async``: a message that needs nothing special and does not have to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.message import NO_KEYS, Message
from rmq_protocol.properties import message_properties

from .. import machine
from ..results import SendResult
from .calls import Call
from .core import ProducerCore
from .encoding import Outgoing, stored_message
from .routing import Target
from .send_async import AsyncAttempt, AsyncSend

__all__ = ["room_of", "try_fast_send_async"]


def try_fast_send_async(
    sender: ProducerCore,
    message: Message,
    size: int,
    on_success: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> tuple[asyncio.Future[SendResult] | None, Target | None]:
    """Submits a message; returns no future if the call would have to wait, and the next queue if it was taken for nothing."""
    credit, topic_queues = sender.credits, sender.queues_by_topic.get(message.topic)
    if topic_queues is None or credit.contended or credit.free <= 0 or credit.free_bytes < size:
        return None, None
    deadline = (started := machine.monotonic()) + sender.timeout
    accepted: AsyncSend[SendResult]
    plain, gathering = message.keys is NO_KEYS and message.wait_store, topic_queues.gathering
    unique_id = properties = ""
    if gathering is None or not plain:
        unique_id = message.unique_id or sender.ids.next_at(started)
        properties = message_properties(message, unique_id)
    if (
        gathering is not None
        and (room := size + (sender.plain_size if plain else room_of(properties))) <= sender.batcher.max_bytes
    ):
        credit.free -= 1
        credit.free_bytes -= size
        accepted = AsyncSend(credit, credit.epoch, 1, size, on_success, on_error)
        accepted.work = gathering
        item = message if plain else Outgoing(message.topic, unique_id, properties, message.body, 0, message.flag)
        gathering.add_plain(accepted, item, room, deadline, plain=plain)
        return accepted.future, None
    target = topic_queues.next()
    connection = sender.connections.get(target.address)
    if connection is None:
        return None, target
    credit.free -= 1
    credit.free_bytes -= size
    accepted = AsyncSend(credit, credit.epoch, 1, size, on_success, on_error)
    outgoing = Outgoing(message.topic, unique_id, properties, message.body, 0, message.flag)
    call = Call(outgoing, stored_message, started, deadline, sender.config.async_retries)
    send = AsyncAttempt(sender.dispatch, call, topic_queues, target, accepted)
    send.start_single(connection, sender.ids.born_ms, None if plain else properties)
    return accepted.future, None


def room_of(properties: str) -> int:
    """Returns the bytes that a message takes in a batch besides its body."""
    return BATCH_OVERHEAD + (len(properties) if properties.isascii() else len(properties.encode()))
