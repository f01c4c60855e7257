"""Prepares messages and batches, and sends them any number of times, for the Spark sink.

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
    """An encoded message or batch of checked messages.

    Attributes:
        queue: The only queue that it may go to, or None.
        messages: Number of messages.
        bytes: Size of their bodies.
        held: Bytes kept until the response, properties included, before compression.
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
    """Encode checked messages of one topic with new unique ids, several messages as one batch.

    Args:
        texts: The properties of each message as they are on the wire, without the unique id and WAIT.
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
    """Return a single message with its body compressed if ``send`` would do that; return others, and batches, unchanged.

    Raises as ``Compressor.compress``.

    Args:
        timeout: Seconds for the compression.
    """
    core = producer._usable()  # noqa: SLF001 - a part of the producer, for Spark only
    if prepared.outgoing.batch_ids is not None or prepared.bytes < core.compressor.above:
        return prepared
    return prepared._replace(outgoing=await core.compressor.compress(prepared.outgoing, machine.monotonic() + timeout))


async def send_prepared(producer: Producer, prepared: PreparedSend, timeout: float) -> SendResult | BatchSendResult:
    """Send a prepared message or batch, which may be sent again. The result and errors are the same as of ``send`` and
    ``send_batch``.
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
    """Return the queues that the topic of ``queue`` has if ``queue`` is none of them; None if it exists or may come back.

    A name server is asked anew, because queues may be new.

    A broker that restarts is in no route meanwhile: one that this producer has used may come back, and any other one if
    ``returning``. Raises as ``RouteTable.fetch``.

    Args:
        timeout: Seconds for the request.
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
    """Return the body of a batch, equal to the result of ``rmq_protocol.batch.encode_batch`` for the messages with
    ``wait_store=True``.
    """
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
