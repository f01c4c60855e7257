"""Gives a message back to its broker: for another delivery after a delay, or as a dead letter.

CONSUMER_SEND_MSG_BACK (36) names a stored message by its commit log offset; the broker copies the message into the retry topic
of the group, or into its dead-letter topic. Where that broker does not, the client can send a copy to another one itself
(``send_copy``), as Java's ``sendMessageBackAsNormalMessage`` does. Brokers turn a send to the retry topic into a dead letter if
its header's reconsume times are above the header's maximum (4.9.7: or equal to it); 4.9.7 does so only for a message without a
delay, and brokers from 5.1.4 on with any number of times, while a client holds a lock under the group's own name.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from rmq_protocol import constants
from rmq_protocol.command import RemotingCommand
from rmq_protocol.compression import compress, compression_type
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2, request_of
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import properties_text

from .. import machine
from .._text import printable
from ..broker_answers import broker_error
from ..errors import RequestTimeoutError, RocketMQError
from .instance import ClientInstance

# The bodies of messages that a client sends again.


async def body_as_stored(instance: ClientInstance, received: MessageExt, deadline: float) -> tuple[bytes, int]:
    """Return the body of a copy and its flags: a body that was stored compressed is compressed again, if that makes it smaller.

    Args:
        deadline: Monotonic time.

    Raises:
        RequestTimeoutError: If that takes longer.
    """
    # A broker may refuse the larger body. Old senders use zlib without a flag for the type; only the size of the record then shows
    # that the body was compressed.
    body, kind = received.body, compression_type(received.sys_flag)
    if not received.sys_flag & constants.COMPRESSION_TYPE_MASK and not 0 < received.store_size < len(body):
        return body, 0
    try:
        packed = await instance.threads.run(partial(compress, body, kind), deadline)
    except TimeoutError:
        text = (
            f"message {printable(received.msg_id)} was not sent again: its {len(body)} bytes were not compressed in time; call "
            "again, or raise request_timeout"
        )
        raise RequestTimeoutError(text, maybe_stored=False) from None
    return (packed, int(constants.SysFlag.COMPRESSED | kind.value)) if len(packed) < len(body) else (body, 0)


_NOT_COPIED: Final = frozenset(
    {
        constants.PropertyName.DELAY,
        constants.PropertyName.TRAN_MSG,
        constants.PropertyName.INNER_MULTI_DISPATCH,
        constants.PropertyName.INNER_MULTI_QUEUE_OFFSET,
        constants.PropertyName.POP_CK,
        constants.PropertyName.TIMER_DELAY_SEC,
        constants.PropertyName.TIMER_DELAY_MS,
        constants.PropertyName.TIMER_DELIVER_MS,
    }
)
"""Properties with which a broker would hold the copy back, hide it, or store it in other queues too."""


async def send_back(
    instance: ClientInstance, group: str, topic: str, message: MessageExt, *, level: int, max_times: int | None
) -> None:
    """Give ``message`` back to the broker that it came from; return when the broker has stored its copy.

    Raises BrokerError (code 1 where the broker no longer stores the message) and the errors of a request; after
    RequestTimeoutError and ConnectionLostError with ``maybe_stored`` the copy may be stored.

    Args:
        group: Name of the group on the wire.
        topic: Name on the wire of the topic to which the message was first sent.
        level: 1 to 18, 0 for the broker's choice by attempts, -1 for a dead letter.
        max_times: Deliveries after the first; None for the group's setting.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset,
        group=group,
        delayLevel=level,
        originMsgId=message.msg_id,
        originTopic=topic,
        maxReconsumeTimes=max_times,
        bname=(broker_name := broker_of_message(instance, topic, message)),
    )
    command = request_of(header)
    await _ask(instance, broker_name, topic, command)


async def send_copy(
    instance: ClientInstance, group: str, topic: str, message: MessageExt, *, broker: str, level: int, max_times: int
) -> None:
    """Send a copy of ``message`` to the retry topic of ``group`` at ``broker``; return when the broker has stored it.

    Raises BrokerError and the errors of a request; after RequestTimeoutError and ConnectionLostError with ``maybe_stored`` the
    copy may be stored.

    Args:
        group: Name of the group on the wire.
        topic: Name on the wire of the topic to which the message was first sent.
        level: Delay level, 0 for a copy that the broker turns into a dead letter.
        max_times: Deliveries after the first, which the copy carries for its readers.
    """
    times = message.reconsume_times + 1
    body, sys_flag = await body_as_stored(instance, message, machine.monotonic() + instance.config.request_timeout)
    properties: dict[str, str | None] = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    properties.setdefault(constants.PropertyName.RETRY_TOPIC, topic)
    properties.setdefault(constants.PropertyName.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[constants.PropertyName.RECONSUME_TIME] = str(times)
    properties[constants.PropertyName.MAX_RECONSUME_TIMES] = str(max_times)
    if level:
        properties[constants.PropertyName.DELAY] = str(level)
    header = SendMessageRequestHeaderV2(
        a=group,
        b=(retry_topic := constants.RETRY_TOPIC_PREFIX + group),
        c=constants.AUTO_CREATE_TOPIC_KEY,
        d=1,
        e=-1,  # the broker chooses
        f=sys_flag,
        g=message.born_time_ms,
        h=message.flag,
        i=properties_text(properties),
        j=times,
        k=False,
        l=max(max_times, times + 1) if level else 0,
        m=False,
        n=broker,
    )
    command = request_of(header, body=body)
    await _ask(instance, broker, retry_topic, command, constants.STORED_CODES)


async def retry_brokers(instance: ClientInstance, group: str, timeout: float) -> tuple[str, ...]:
    """Return the names of the brokers whose retry topic of ``group`` may be written to, as far as the routes show it.

    Ask for its route if none is known. Return none where that fails.
    """
    topic = constants.RETRY_TOPIC_PREFIX + group
    route = instance.routes.cached(topic)
    if route is None:
        try:
            route = await instance.routes.get(topic, timeout)
        except RocketMQError:
            return ()
    return tuple(dict.fromkeys(queue.broker_name for queue in route.publish_queues))


def broker_of_message(instance: ClientInstance, topic: str, message: MessageExt) -> str:
    """Return the name of the broker that stores ``message``, for a static topic as far as the routes show it."""
    # The queue of a static topic does not name the broker, and another one may hold that queue by now.
    queue = message.queue
    if not queue.broker_name.startswith(constants.LOGICAL_QUEUE_MOCK_BROKER_PREFIX):
        return queue.broker_name
    stored_by = [name for name, address in instance.routes.masters().items() if address == message.store_host]
    return stored_by[0] if stored_by else instance.routes.broker_of(MessageQueue(topic, queue.broker_name, queue.queue_id))


async def _ask(
    instance: ClientInstance,
    broker_name: str,
    topic: str,
    command: RemotingCommand,
    stored: Collection[int] = (constants.ResponseCode.SUCCESS,),
) -> None:
    response, address = await instance.ask_broker(broker_name, topic, command, instance.config.request_timeout)
    if response.code not in stored:
        raise broker_error(
            response.code,
            response.remark,
            request=constants.RequestCode(command.code).name,
            broker=broker_name,
            address=address,
        )
