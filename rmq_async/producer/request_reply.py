"""Request and reply: a request message, and the reply message that a broker pushes to the client that sent the request.

A broker finds the requesting client by its id, which it knows from heartbeats, and only among its own connections. Therefore a
request first waits a moment until the brokers that may push the reply have responded to a heartbeat. These are the brokers of the
cluster's reply topic, not only the brokers of the message's topic. A request holds its credit and its entry in the reply table
until its call ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Final

from rmq_protocol.compression import compression_type, decompress
from rmq_protocol.constants import PropertyName, RequestCode, SysFlag
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError, RocketMQError, shown
from rmq_protocol.ids import pack_host
from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.reply import CREATE_REPLY_MESSAGE, REPLY_TOPIC_SUFFIX, create_reply

from .. import machine
from .._asyncio import wait_until
from .._text import type_name
from ..client import PushedReply
from ..errors import ClientStateError, NameServerError, ReplyTimeoutError, TopicNotFoundError
from ..results import SendResult
from .begin import deliver
from .calls import Call
from .core import ProducerCore
from .encoding import stored_message
from .routing import Selector, TopicQueues, choice_of

INTRODUCTION: Final = 1.0
"""Maximum seconds that a request waits for brokers to respond to a heartbeat. It also waits at most a third of its remaining
time."""

MOST_CLUSTERS: Final = 16
"""Maximum number of clusters per topic whose reply topics are looked up."""

ANSWER_AFTER_REPLY: Final = 0.1
"""Maximum seconds that a request waits for the response to its send after its reply has arrived."""

DECODE_IN_THREAD: Final = 64 * 1024
"""Compressed bodies of at least this many bytes are decompressed in another thread."""


async def request(
    sender: ProducerCore, message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, timeout: float
) -> MessageExt:
    """Send ``message`` as ``send`` does, and return the reply to it."""
    started = machine.monotonic()
    deadline = started + timeout
    instance = sender.instance
    sender.encoder.check(message)
    correlation_id = instance.replies.new_id()
    asking = {
        PropertyName.CORRELATION_ID.value: correlation_id,
        PropertyName.REPLY_TO_CLIENT.value: instance.client_id,
        PropertyName.TTL.value: str(round(timeout * 1000)),
    }
    outgoing = sender.encoder.encode(message, asking)
    if sender.watched:
        sender.watchers.watch(outgoing, message, "sync", stored_message)
    choice = choice_of(message, queue, selector, key, sender.prefix)
    call = Call(
        outgoing, stored_message, started, deadline, sender.retries, message, choice, len(message.body),
        lite_topic=message.lite_topic,
    )  # fmt: skip
    replied = instance.replies.expect(correlation_id)
    try:
        # ``enter`` waits for the heartbeats, so that a call that chooses its queue keeps its place in the topic's line meanwhile.
        await sender.admission.enter(call, partial(_introduce, sender, deadline))
        epoch = call.transfer()  # held until the reply has arrived
        try:
            sent = await _sent(replied, deliver(sender, call))
            if sent is not None:
                await _until_replied(sender, replied, sent, deadline, timeout)
            try:
                return await _message(replied.result(), sender, deadline, timeout)
            except CorruptMessageError as error:
                error.maybe_stored = True  # the request is stored, because it was answered
                raise
        finally:
            sender.credits.give_back(epoch, 1, call.size)
    finally:
        sender.admission.leave(call)
        instance.replies.forget(correlation_id)


async def reply(
    sender: ProducerCore, asked: MessageExt, body: bytes, properties: Mapping[str, str] | None, timeout: float
) -> SendResult:
    """Send the reply to a received message.

    The first attempt goes to the message's broker if it accepts replies, because the requesting client is probably connected to it.
    """
    started = machine.monotonic()
    deadline = started + timeout
    if not isinstance(asked, MessageExt):
        raise TypeError(f"request must be a received MessageExt, not {type_name(asked)}")
    topic, asking = create_reply(asked.properties)
    for name in (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT):
        if name not in asking:
            text = f"message {shown(asked.msg_id)} has no property {name}; reply only to messages that were sent with request()"
            raise LocalProtocolError(text, code=CREATE_REPLY_MESSAGE)
    message = Message(topic, body, properties=properties)
    sender.encoder.check(message)
    outgoing = sender.encoder.encode(message, asking)
    outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
    if sender.watched:
        sender.watchers.watch(outgoing, message, "sync", stored_message)
    call = Call(outgoing, stored_message, started, deadline, sender.retries, size=len(body))
    call.epoch = await sender.credits.take(1, len(body), deadline)
    try:
        if len(body) >= sender.compressor.above:
            call.outgoing = await sender.compressor.compress(outgoing, deadline)
        # Brokers create the reply topic themselves, outside all namespaces. The route is fetched first, so that no send creates it.
        await sender.unless_stopped(sender.instance.routes.get(topic, max(deadline - machine.monotonic(), 0.0)))
        sender.outside_namespaces(topic)
        topic_queues = sender.queues_by_topic.get(topic) or await sender.topics.find(topic, deadline)
        asked_by = asked.queue.broker_name
        call.topic_queues = topic_queues
        call.target = topic_queues.next_of((asked_by,)) if asked_by in topic_queues.brokers else topic_queues.next()
        return await deliver(sender, call)
    finally:
        sender.admission.leave(call)


async def _introduce(sender: ProducerCore, deadline: float, topic_queues: TopicQueues) -> None:
    """Wait until the brokers that may push the reply have responded to a heartbeat; see ``INTRODUCTION`` for the limit."""
    now = machine.monotonic()
    until = now + min(INTRODUCTION, (deadline - now) / 3)
    routes = sender.instance.routes
    met = {address for broker in topic_queues.brokers if (address := topic_queues.route.master_address(broker)) is not None}
    names = {
        data.cluster
        for data in topic_queues.route.data.broker_datas
        if data.broker_name in topic_queues.brokers and data.cluster
    }
    replies = sender.instance.replies
    for cluster in sorted(names)[:MOST_CLUSTERS]:
        topic = f"{cluster}_{REPLY_TOPIC_SUFFIX}"
        route = routes.cached(topic)
        if route is None:
            if replies.is_unrouted(topic):
                continue
            try:
                route = await sender.unless_stopped(routes.get(topic, max(until - machine.monotonic(), 0.0)))
            except (TopicNotFoundError, NameServerError):
                replies.mark_unrouted(topic)
                continue
        routes.use.mark(topic)
        met |= {address for broker in route.addresses if (address := route.master_address(broker)) is not None}
    await sender.unless_stopped(sender.instance.heartbeats.introduce(sorted(met), max(until - machine.monotonic(), 0.0)))


async def _sent(replied: asyncio.Future[PushedReply], sending: Awaitable[SendResult]) -> SendResult | None:
    """Return the result of the send. Return None if only the reply has arrived, which proves that the request is stored."""
    scope, over = asyncio.timeout(None), False

    def hurry(_: object, scope: asyncio.Timeout = scope) -> None:
        if not over:
            scope.reschedule(asyncio.get_running_loop().time() + ANSWER_AFTER_REPLY)

    replied.add_done_callback(hurry)
    try:
        async with scope:
            sent = await sending
            over = True
            return sent
    except (RocketMQError, TimeoutError):
        if not replied.done():
            raise
        return None
    finally:
        over = True
        replied.remove_done_callback(hurry)
        del scope, hurry  # breaks the cycle scope -> task -> error -> traceback -> this frame


async def _until_replied(
    sender: ProducerCore, replied: asyncio.Future[PushedReply], sent: SendResult, deadline: float, timeout: float
) -> None:
    broker = sent.queue.broker_name
    try:
        if await sender.unless_stopped(wait_until(replied, deadline)):
            return
    except ClientStateError:
        text = f"the producer was stopped before the reply to {sent.msg_id} arrived; use a longer stop_timeout"
        raise _stored(ClientStateError, text, broker) from None
    place = f"queue {sent.queue.queue_id} of topic {sent.queue.topic} on {broker}"
    text = (
        f"no reply to {sent.msg_id} in {place} within {timeout:.3g} s; check that a consumer replies, or use a longer timeout"
    )
    raise _stored(ReplyTimeoutError, text, broker)


def _stored(kind: type[ClientStateError | ReplyTimeoutError], text: str, broker: str | None = None) -> RocketMQError:
    error = kind(f"{text}; the request is stored", broker=broker)
    error.maybe_stored = True
    return error


async def _message(pushed: PushedReply, sender: ProducerCore, deadline: float, timeout: float) -> MessageExt:
    """Return the message of a pushed reply.

    Raises:
        CorruptMessageError: If the body is damaged or exceeds ``max_decompressed_size``.
        ReplyTimeoutError: If the decompression in another thread has not ended at ``deadline``.
        ClientStateError: If the producer stops during the decompression in another thread.
    """
    header, properties, body = pushed
    instance = sender.instance
    topic, sys_flag = instance.names.shown(header.topic), header.sysFlag
    if sys_flag & SysFlag.COMPRESSED and body:
        decode = partial(decompress, body, compression_type(sys_flag), instance.config.max_decompressed_size)
        if len(body) < DECODE_IN_THREAD:
            body = decode()
        else:
            try:
                body = await sender.unless_stopped(instance.threads.run(decode, deadline))
            except TimeoutError:
                text = f"the reply's {len(body)} bytes were not decompressed within {timeout:.3g} s; use a longer timeout"
                raise _stored(ReplyTimeoutError, text) from None
            except ClientStateError:
                text = "the producer was stopped before the reply was decompressed; use a longer stop_timeout"
                raise _stored(ClientStateError, text) from None
        sys_flag &= ~SysFlag.COMPRESSED
    return MessageExt(
        topic=topic,
        body=body,
        flag=header.flag,
        properties=properties,
        queue=MessageQueue(topic, header.bname or "", header.queueId),
        sys_flag=int(sys_flag),
        born_time_ms=header.bornTimestamp,
        store_time_ms=header.storeTimestamp,
        born_host=_host(header.bornHost),
        store_host=_host(header.storeHost),
        reconsume_times=header.reconsumeTimes or 0,
    )


def _host(text: str) -> str:
    """Return ``text`` if it is a valid host, else "", because message ids are made from hosts."""
    try:
        pack_host(text)
    except LocalProtocolError:
        return ""
    return text
