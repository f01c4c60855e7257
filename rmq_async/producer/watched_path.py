"""The short path of ``send`` for messages that hooks or message traces watch, and that need nothing else.

It does what the general path does while the first attempt succeeds. Calls that must wait, choose a queue or need another form
of request use the general path at once, and a failed first attempt continues in a RetryLoop.
"""

from __future__ import annotations

import asyncio
from contextvars import Context, copy_context
from typing import Final

import msgspec

from rmq_protocol.errors import RocketMQError
from rmq_protocol.message import NO_KEYS, Keys, Message
from rmq_protocol.properties import message_properties
from rmq_protocol.send_codec import LENGTHS, SendReply
from rmq_protocol.trace import MessageType

from .. import machine
from ..hooks import SendContext
from ..results import SendResult
from ..transport import Connection, Pending
from .calls import Call, RetryLoop, deliver
from .core import ProducerCore
from .encoding import stored_message
from .general_path import SendArguments, general_send
from .routing import Target, TopicQueues
from .watching import Answer, TracedReceiver, Watch, WatchedReceiver

__all__ = ["send_watched"]

NORMAL: Final = MessageType.NORMAL
MILLISECOND: Final = 0.001


async def send_watched(sender: ProducerCore, arguments: SendArguments) -> SendResult:
    """Sends a message and calls the hooks for its attempts; takes the general path if ``_topic_queues_of`` returns None."""
    message, credit = arguments.message, sender.credits
    topic_queues = _topic_queues_of(sender, arguments)
    if topic_queues is None:
        return await general_send(sender, arguments)
    started = machine.monotonic()
    unique_id = sender.ids.next_at(started) if message.unique_id is None else sender.ids.given(message.unique_id)
    properties = None
    if message.keys is not NO_KEYS or not message.wait_store:
        properties = message_properties(message, unique_id)
    call = WatchedSend(message, unique_id, properties, started, started + sender.timeout, copy_context())
    size, epoch = len(message.body), credit.epoch
    credit.free -= 1
    credit.free_bytes -= size
    try:
        target = topic_queues.next()
        connection = sender.connections.get(target.address)
        if connection is None or target.general:
            return await deliver(sender.dispatch, call.general(sender), topic_queues, target)
        future: asyncio.Future[Answer] = sender.create_future()
        receiver, pending = _start(sender, call, topic_queues, target, connection, future)
        error: RocketMQError | None = None
        reply: SendReply | None = None
        try:
            answer = await future
        except RocketMQError as failure:
            error = failure
        except BaseException as failure:
            connection.requests.forget(pending.opaque)
            receiver.give_up(failure)
            if sender.faults is not None:
                sender.faults.failed(target.broker, failure, machine.monotonic() - started, machine.monotonic())
            raise
        else:
            if isinstance(answer, SendResult):
                faults = sender.faults
                if faults is not None and (faults.measures or target.broker in faults.items):
                    faults.succeeded(target.broker, machine.monotonic() - started, machine.monotonic())
                return answer
            reply = answer
        loop = RetryLoop(sender.dispatch, call.general(sender, began=True), topic_queues)
        loop.adopt(target, connection, pending, started, error, reply)
        return await loop.run()
    finally:
        credit.free += 1
        credit.free_bytes += size
        if credit.watched:
            credit.came_back(epoch, 1)


class WatchedSend(msgspec.Struct):
    """A send on this path. ``scope``: the caller's context.

    ``properties``: the encoded properties; None if the message has only a topic and a body.
    """

    message: Message
    unique_id: str
    properties: str | None
    started: float
    deadline: float
    scope: Context

    def general(self, sender: ProducerCore, *, began: bool = False) -> Call[SendResult]:
        """Returns this send as a call of the general path. ``began``: hooks have seen the first attempt."""
        message = self.message
        text = self.properties or message_properties(message, self.unique_id)
        outgoing = sender.encoder.outgoing(message.topic, self.unique_id, text, message.body, 0, message.flag)
        outgoing.watch = watch = Watch(sender.watchers, message, NORMAL, "sync", stored_message)
        if began:
            watch.resume(self.scope)
        return Call(outgoing, stored_message, self.started, self.deadline, sender.retries)


def _topic_queues_of(sender: ProducerCore, arguments: SendArguments) -> TopicQueues | None:
    """Returns the queues of a usual message's topic; None if the call would have to wait or needs the general path."""
    message, credit = arguments.message, sender.credits
    if (
        message.__class__ is not Message
        or ((keys := message.keys).__class__ is not tuple and keys.__class__ is not Keys)
        or arguments.queue is not None
        or arguments.selector is not None
        or arguments.key is not None
        or arguments.timeout is not None
        or message.body.__class__ is not bytes
        or message.topic.__class__ is not str
        or not 0 < (size := len(message.body)) < sender.watched_below
        or credit.contended
        or credit.free <= 0
        or credit.free_bytes < size
    ):
        return None
    return sender.queues_by_topic.get(message.topic)


def _start(
    sender: ProducerCore,
    call: WatchedSend,
    topic_queues: TopicQueues,
    target: Target,
    connection: Connection,
    future: asyncio.Future[Answer],
) -> tuple[WatchedReceiver | TracedReceiver, Pending]:
    """Calls the hooks for the first attempt and queues its frame. Raises as ``Watchers.begin``, or if the connection is closed."""
    message, unique_id, watchers, properties = call.message, call.unique_id, sender.watchers, call.properties
    receiver: WatchedReceiver | TracedReceiver
    first_deadline = (
        sender.first_deadline(call.started, call.deadline, sender.retries) if topic_queues.several else call.deadline
    )
    if watchers.only_trace is not None:
        receiver = TracedReceiver(watchers.only_trace, message, unique_id, target, future)
    else:
        sending = watchers.sending
        context = SendContext(
            message=message,
            msg_ids=(unique_id,),
            queue=target.queue,
            address=target.address,
            attempt=1,
            message_type=NORMAL,
            group=sending.group,
            mode="sync",
            broker=target.broker,
            namespace=sending.namespace,
            born_host=sending.born_host,
            name_servers=sending.name_servers,
            unit_mode=sending.unit_mode,
        )
        watchers.begin(call.scope, context)
        receiver = WatchedReceiver(watchers, call.scope, context, unique_id, target, future)
        if context.properties:
            properties = watchers.with_added(properties or message_properties(message, unique_id), context.properties)
    if message.unique_id is not None or receiver.started - call.started > MILLISECOND:
        sender.ids.now()  # the time in the frame is not that of the id
    requests, template, size = connection.requests, target.single, len(message.body)
    try:
        if not requests.is_open:
            requests.require_open()
        opaque = next(requests.opaques, 0) or requests.next_opaque()
        return receiver, requests.enter_single(
            opaque,
            template.plain_frame
            % (LENGTHS[template.plain_base + size], sender.ids.born_ms, unique_id.encode(), opaque, message.body)
            if properties is None and size < template.plain_below  # what ``parts`` does, nearly always
            else template.parts(
                opaque, sender.ids.born_ms, properties or message_properties(message, unique_id), message.body, 0, message.flag
            ),
            receiver,
            first_deadline,
            call.deadline,
            sender,
            sender.window,
        )
    except Exception as error:
        receiver.give_up(error)
        raise
