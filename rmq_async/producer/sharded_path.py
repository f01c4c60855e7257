"""The short path of messages with a sharding key: from ``send`` to the gathering of their queue."""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.constants import RETRY_TOPIC_PREFIX
from rmq_protocol.message import Message
from rmq_protocol.properties import message_properties

from .. import machine
from ..results import SendResult
from .batching import QueueGathering
from .core import ProducerCore
from .encoding import Outgoing
from .routing import hash_of

__all__ = ["place_sharded"]


def place_sharded(sender: ProducerCore, message: Message) -> tuple[QueueGathering, asyncio.Future[SendResult]] | None:
    """Takes credits and adds the message to the gathering of its sharding key's queue.

    The caller has checked that the message has a sharding key, and that the body is ``bytes`` of a size for the short path; it
    awaits the future and then gives the credits back. Returns None, without credits taken, if the call would have to wait or the
    message needs the general path.
    """
    key: Any = message.sharding_key
    topic, credit, size = message.topic, sender.credits, len(message.body)
    if (
        topic.__class__ is not str
        or (topic_queues := sender.queues_by_topic.get(topic)) is None
        or credit.contended
        or credit.free <= 0
        or credit.free_bytes < size
    ):
        return None
    line = sender.admission.lines.by_topic.get(topic)
    if (line is not None and line.busy) or topic.startswith(RETRY_TOPIC_PREFIX):
        return None
    queues, batcher = topic_queues.keyed, sender.batcher
    queue = queues[abs(hash_of(key)) % len(queues)]  # what ``select_by_hash`` does
    gathering = batcher.fixed.get(queue)
    started = machine.monotonic()
    unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
    properties = message_properties(message, unique_id)
    room = BATCH_OVERHEAD + size + len(properties.encode())
    if room > batcher.max_bytes:
        return None
    if gathering is None or gathering.topic_queues is not topic_queues:
        if (target := topic_queues.by_queue.get(queue) or topic_queues.reachable(queue)) is None:
            return None
        gathering = batcher.in_order(topic_queues, target, fixed=True)
    future: asyncio.Future[SendResult] = sender.create_future()
    outgoing = Outgoing(topic, unique_id, properties, message.body, 0, message.flag)
    gathering.add(future, outgoing, room, started + sender.timeout, wait_store=message.wait_store)
    credit.free -= 1
    credit.free_bytes -= size
    return gathering, future
