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
from .encoding import BatchItem, Outgoing, stored_message
from .routing import Target
from .send_async import AsyncAttempt, AsyncSend

__all__ = ["batch_item", "try_fast_send_async"]


def try_fast_send_async(
    sender: ProducerCore,
    message: Message,
    size: int,
    on_success: Callable[[SendResult], object] | None,
    on_error: Callable[[BaseException], object] | None,
) -> tuple[asyncio.Future[SendResult] | None, Target | None]:
    """Submits a message and returns (its future, None); returns (None, ``turn``) if the message needs the general path.

    ``turn``: the queue that the round robin has already returned, else None; an argument of ``general_send_async``.
    """
    credit, topic_queues = sender.credits, sender.queues_by_topic.get(message.topic)
    if topic_queues is None or credit.contended or credit.free <= 0 or credit.free_bytes < size:
        return None, None
    deadline = (started := machine.monotonic()) + sender.timeout
    accepted: AsyncSend[SendResult]
    plain, gathering = message.keys is NO_KEYS and message.wait_store, topic_queues.gathering
    item: tuple[BatchItem, int] | None = message, size + sender.plain_size
    if gathering is not None and not plain:
        item = batch_item(sender, message, size)
    if gathering is not None and item is not None:
        credit.free -= 1
        credit.free_bytes -= size
        accepted = AsyncSend(credit, credit.epoch, 1, size, on_success, on_error)
        accepted.work = gathering
        gathering.add_plain(accepted, item[0], item[1], deadline, plain=plain)
        return accepted.future, None
    unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
    properties = message_properties(message, unique_id)
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
    send.start_single(connection, sender.ids.born_ms, plain=plain)
    return accepted.future, None


def batch_item(sender: ProducerCore, message: Message, size: int) -> tuple[BatchItem, int] | None:
    """Returns the message as a ``BatchItem``, and its size in a batch in bytes; None if no batch has room for it.

    ``size``: bytes of its body. A message without a unique id gets one when its batch is encoded. Raises InvalidMessageError
    for properties above 32767 bytes.
    """
    batcher, unique_id = sender.batcher, message.unique_id
    text = message_properties(message, unique_id or batcher.stand_in)
    room = BATCH_OVERHEAD + size + (len(text) if text.isascii() else len(text.encode()))
    if room > batcher.max_bytes:
        return None
    if unique_id is None:
        return (message, text[batcher.after_id :]), room
    return Outgoing(message.topic, unique_id, text, message.body, 0, message.flag), room
