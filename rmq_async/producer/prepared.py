"""Prepares messages and batches for the Spark sink, which may send each of them several times.

All copies of a prepared message or batch have the same unique ids.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from rmq_protocol.batch import BATCH_OVERHEAD
from rmq_protocol.message import MessageQueue
from rmq_protocol.properties import AFTER_ID, BEFORE_ID, WAIT, properties_text

from .. import machine
from ..results import BatchSendResult, SendResult
from .begin import deliver
from .calls import Call
from .encoding import Outgoing, stored_batch, stored_message
from .producer import Producer
from .routing import checked_choice

_HEAD: Final = struct.Struct(">iiiii").pack
_LENGTH: Final = struct.Struct(">H").pack


class PreparedSend(NamedTuple):
    """A message or batch that is checked and encoded.

    Attributes:
        queue: The only queue to which it may be sent, or None.
        messages: Number of messages.
        bytes: Total bytes of the bodies.
        held: Bytes that are kept in memory until the response, including properties, before compression.
    """

    outgoing: Outgoing
    queue: MessageQueue | None
    messages: int
    bytes: int
    held: int


def prepare(
    producer: Producer,
    topic: str,
    bodies: list[bytes],
    texts: list[str],
    flags: Sequence[int] | None,
    queue: MessageQueue | None,
) -> PreparedSend:
    """Encode checked messages of one topic with new unique ids. Several messages become one batch.

    Args:
        texts: The properties of each message, encoded, without the unique id and WAIT.
    """
    encoder = producer._usable().encoder  # noqa: SLF001 - a part of the producer, for Spark only
    ids = encoder.ids.take(len(bodies))
    namespace = properties_text(encoder.instance)
    if len(bodies) == 1:
        properties = f"{BEFORE_ID}{ids[0]}{AFTER_ID}{texts[0]}{namespace}"
        outgoing = encoder.outgoing(topic, ids[0], properties, bodies[0], 0, flags[0] if flags else 0)
    else:
        body = encoded_batch(bodies, texts, ids, flags or [0] * len(bodies))
        outgoing = encoder.outgoing(topic, ids[0], WAIT + namespace, body, 0, 0, tuple(ids))
    held = len(outgoing.body) + len(outgoing.properties)
    return PreparedSend(outgoing, queue, len(bodies), sum(map(len, bodies)), held)


async def compress_prepared(producer: Producer, prepared: PreparedSend, timeout: float) -> PreparedSend:
    """Return a single message with its body compressed, if ``send`` would compress it. Return batches and other messages unchanged.

    Args:
        timeout: Seconds for the compression.

    Raises:
        RocketMQError: The errors of ``Compressor.compress``.
    """
    core = producer._usable()  # noqa: SLF001 - a part of the producer, for Spark only
    if prepared.outgoing.batch_ids is not None or prepared.bytes < core.compressor.above:
        return prepared
    return prepared._replace(outgoing=await core.compressor.compress(prepared.outgoing, machine.monotonic() + timeout))


async def send_prepared(producer: Producer, prepared: PreparedSend, timeout: float) -> SendResult | BatchSendResult:
    """Send a prepared message or batch, which may be sent again later.

    The result and the errors are the same as in ``send`` and ``send_batch``.
    """
    core, started = producer._usable(), machine.monotonic()  # noqa: SLF001 - a part of the producer, for Spark only
    outgoing, queue = prepared.outgoing, prepared.queue
    choice = checked_choice(outgoing.topic, queue, None, None, core.prefix) if queue is not None else None
    read = stored_message if outgoing.batch_ids is None else stored_batch
    call: Call[SendResult | BatchSendResult] = Call(
        outgoing, read, started, started + timeout, core.retries, None, choice, prepared.bytes
    )
    return await deliver(core, call)


async def queues_instead(
    producer: Producer, queue: MessageQueue, timeout: float, *, returning: bool
) -> tuple[MessageQueue, ...] | None:
    """Return the queues of the topic of ``queue`` if ``queue`` no longer exists. Return None if it exists or may come back.

    The route is requested again, because queues may be new. While a broker restarts, it is in no route. Therefore a queue may come
    back if this producer has used its broker.

    Args:
        timeout: Seconds for the request.
        returning: Whether to assume that the queues of all other brokers may come back, too.

    Raises:
        RocketMQError: The errors of ``RouteTable.fetch``.
    """
    core = producer._usable()  # noqa: SLF001 - a part of the producer, for Spark only
    route = await core.instance.routes.fetch(core.topics.wire_topic(queue.topic), timeout)
    numbers = {each.broker_name: max(each.write_queue_nums, each.read_queue_nums) for each in route.data.queue_datas}
    queues = tuple(each._replace(topic=queue.topic) for each in route.publish_queues)
    if queue in queues or queue.queue_id < numbers.get(queue.broker_name, 0):
        return None
    if queue.broker_name not in numbers and (returning or core.topics.has_used(queue.topic, queue.broker_name)):
        return None
    return queues


def encoded_batch(bodies: Sequence[bytes], texts: Sequence[str], ids: Sequence[str], flags: Sequence[int]) -> bytes:
    """Return the body of a batch. It is equal to the result of ``rmq_protocol.batch.encode_batch`` with ``wait_store=True``."""
    parts: list[bytes] = []
    head = tail = b""
    size = width = last = -1
    for body, text, unique_id, flag in zip(bodies, texts, ids, flags, strict=True):
        properties = f"{BEFORE_ID}{unique_id}{AFTER_ID}{text}".encode()
        if len(body) != size or len(properties) != width or flag != last:
            size, width, last = len(body), len(properties), flag
            head = _HEAD(BATCH_OVERHEAD + size + width, 0, 0, flag, size)
            tail = _LENGTH(width)
        parts += (head, body, tail, properties)
    return b"".join(parts)
