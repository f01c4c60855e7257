"""Request and reply: a message that asks, and the one that answers, which the broker pushes to the client that asked.

A broker finds the asking client by its id, which it knows from heartbeats, and only its own connections count. So before the first
request every broker through which a reply may come has answered a heartbeat: those of the cluster's reply topic, not only those
of the message's own. A request keeps its credit until the reply is there; its entry in the table of replies goes with the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from rmq_protocol.compression import compression_type, decompress
from rmq_protocol.constants import PropertyName, RequestCode, SysFlag
from rmq_protocol.errors import LocalProtocolError, RocketMQError, shown
from rmq_protocol.ids import pack_host
from rmq_protocol.message import Message, MessageExt, MessageQueue
from rmq_protocol.reply import CREATE_REPLY_MESSAGE, REPLY_TOPIC_SUFFIX, create_reply

from ..client.reply_table import PushedReply
from ..errors import ClientStateError, NameServerError, ReplyTimeoutError, TopicNotFoundError
from ..results import SendResult
from ..transport import wait_until
from .credits import Epoch
from .lanes import Lane
from .replies import stored_message
from .selectors import Selector, wish_of
from .sender import Sender

__all__ = ["reply", "request"]

INTRODUCTION: Final = 1.0
"""Seconds that a request waits for brokers to answer a heartbeat, at most; and at most a third of its budget."""

MOST_CLUSTERS: Final = 16
"""Clusters of one topic whose reply topics are looked up."""

ANSWER_AFTER_REPLY: Final = 0.1
"""Seconds that a request which has its reply still waits for the broker to say that it is stored."""

DECODE_IN_THREAD: Final = 64 * 1024
"""Bytes of a compressed body from which on it is decompressed outside the loop's thread."""


async def request(
    sender: Sender, message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, timeout: float
) -> MessageExt:
    """The reply to ``message``, which is sent like any other."""
    started = monotonic()
    deadline = started + timeout
    instance = sender.instance
    sender.encoder.check(message)
    correlation_id = str(uuid4())
    asking = {
        PropertyName.CORRELATION_ID.value: correlation_id,
        PropertyName.REPLY_TO_CLIENT.value: instance.client_id,
        PropertyName.TTL.value: str(round(timeout * 1000)),
    }
    outgoing = sender.encoder.encode(message, asking)
    if sender.watched:
        sender.watch(outgoing, message, "sync", stored_message)
    wish = wish_of(message, queue, selector, key, sender.prefix)
    credit, size = sender.credits, len(message.body)
    place = (
        None if wish is None else sender.ordered.line(message.topic).join()
    )  # those that come after wait for its introduction, too
    epoch: Epoch | None = None
    replied = instance.replies.expect(correlation_id)
    try:
        if place is not None:
            await place.turn(deadline)
        epoch = credit.try_take(1, size) or await credit.take(1, size, deadline)
        lane = sender.lanes.get(message.topic) or await sender.topics.lane(message.topic, deadline)
        await _introduce(sender, lane, deadline)
        sent = await _sent(
            replied,
            sender.deliver(outgoing, message, wish, 1, size, stored_message, started, deadline, held=True, place=place),
        )
        if sent is not None:
            await _until_replied(sender, replied, sent, deadline, timeout)
        return await _message(replied.result(), sender, deadline, timeout)
    finally:
        if place is not None:
            place.leave()
        instance.replies.forget(correlation_id)
        if epoch is not None:
            credit.give_back(epoch, 1, size)


async def reply(
    sender: Sender, asked: MessageExt, body: bytes, properties: Mapping[str, str] | None, timeout: float
) -> SendResult:
    """Sends the reply to a message that was received, first to the broker that it came from: that one has heard of the client."""
    started = monotonic()
    deadline = started + timeout
    if not isinstance(asked, MessageExt):
        raise TypeError(f"a MessageExt is replied to, not {type(asked).__name__}")
    topic, asking = create_reply(asked.properties)
    for name in (PropertyName.CORRELATION_ID, PropertyName.REPLY_TO_CLIENT):
        if name not in asking:
            text = f"message {shown(asked.msg_id)} has no property {name}: nobody waits for a reply to it"
            raise LocalProtocolError(text, code=CREATE_REPLY_MESSAGE)
    message = Message(topic, body, properties=properties)
    sender.encoder.check(message)
    outgoing = sender.encoder.encode(message, asking)
    outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
    if sender.watched:
        sender.watch(outgoing, message, "sync", stored_message)
    credit, size, retries = sender.credits, len(body), sender.retries
    epoch = credit.try_take(1, size) or await credit.take(1, size, deadline)
    try:
        if size >= sender.encoder.compress_over:
            outgoing = await sender.compressed(outgoing, deadline)
        # Every broker has the topic, which is of no namespace: to create it by sending would be a mistake.
        await sender.unless_stopped(sender.instance.routes.get(topic, max(deadline - monotonic(), 0.0)))
        sender.outside_namespaces(topic)
        lane = sender.lanes.get(topic) or await sender.topics.lane(topic, deadline)
        asked_by = asked.queue.broker_name
        target = lane.next_of((asked_by,)) if asked_by in lane.brokers else lane.next()
        begun = sender.begin(outgoing, lane, target, started, deadline, retries)
        return await sender.finish(begun, outgoing, lane, target, stored_message, started, deadline, retries)
    finally:
        credit.give_back(epoch, 1, size)


async def _introduce(sender: Sender, lane: Lane, deadline: float) -> None:
    """Waits until the brokers that may push the reply know this client; not long for those that do not answer."""
    now = monotonic()
    until = now + min(INTRODUCTION, (deadline - now) / 3)
    routes = sender.instance.routes
    met = {address for broker in lane.brokers if (address := lane.route.master_address(broker)) is not None}
    names = {data.cluster for data in lane.route.data.broker_datas if data.broker_name in lane.brokers and data.cluster}
    replies = sender.instance.replies
    for cluster in sorted(names)[:MOST_CLUSTERS]:
        topic = f"{cluster}_{REPLY_TOPIC_SUFFIX}"
        route = routes.cached(topic)
        if route is None:
            if replies.is_missed(topic):
                continue
            try:
                route = await sender.unless_stopped(routes.get(topic, max(until - monotonic(), 0.0)))
            except (TopicNotFoundError, NameServerError):
                replies.miss(topic)
                continue
        routes.use.mark(topic)
        met |= {address for broker in route.addresses if (address := route.master_address(broker)) is not None}
    await sender.unless_stopped(sender.instance.heartbeats.meet(met, max(until - monotonic(), 0.0)))


async def _sent(replied: asyncio.Future[PushedReply], sending: Awaitable[SendResult]) -> SendResult | None:
    """The result of sending; None when only the reply is there, which proves that the request arrived."""
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
        del scope, hurry  # they know the task, which keeps the error, whose traceback has this frame


async def _until_replied(
    sender: Sender, replied: asyncio.Future[PushedReply], sent: SendResult, deadline: float, timeout: float
) -> None:
    broker = sent.queue.broker_name
    try:
        if await sender.unless_stopped(wait_until(replied, deadline)):
            return
    except ClientStateError:
        raise _stored(ClientStateError, f"the producer was stopped before the reply to {sent.msg_id} came", broker) from None
    text = f"no reply to {sent.msg_id} within {timeout:.3g} s; it is in queue {sent.queue.queue_id} of topic {sent.queue.topic}"
    raise _stored(ReplyTimeoutError, f"{text} on {broker}", broker)


def _stored(kind: type[ClientStateError | ReplyTimeoutError], text: str, broker: str | None = None) -> RocketMQError:
    error = kind(f"{text}; the request is stored", broker=broker)
    error.maybe_stored = True
    return error


async def _message(pushed: PushedReply, sender: Sender, deadline: float, timeout: float) -> MessageExt:
    """Raises CorruptMessageError for a body that cannot be decompressed within the client's bound, and at ``deadline``."""
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
                text = f"the reply came, {len(body)} bytes, and was not decompressed within {timeout:.3g} s"
                raise _stored(ReplyTimeoutError, text) from None
            except ClientStateError:
                raise _stored(ClientStateError, "the producer was stopped before the reply was decompressed") from None
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
    """What is no host is left out: ids are made of it."""
    try:
        pack_host(text)
    except LocalProtocolError:
        return ""
    return text
