"""Gives a message back to its broker: for another delivery after a delay, or as a dead letter.

CONSUMER_SEND_MSG_BACK (36) names a stored message by its commit log offset; the broker copies the message into the retry topic of
the group, or into its dead-letter topic. If that broker does not copy it, the client can send a copy to another broker itself
(``send_copy``), as Java's ``sendMessageBackAsNormalMessage`` does. Brokers turn a send to the retry topic into a dead letter if the
reconsume times in the header are above the header's maximum. 4.9.7 also does so if they are equal to the maximum, but only for a
message without a delay. While a client holds a lock under the group's own name, brokers since 5.1.4 do so for any reconsume times.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Final

from rmq_protocol import constants
from rmq_protocol.command import RemotingCommand
from rmq_protocol.compression import compress, compression_type
from rmq_protocol.forwarding import DEAD_LITE_TOPIC
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
    """Return the body and the system flags for a copy of a message.

    A body that was stored compressed is compressed again if that makes it smaller.

    Args:
        deadline: Monotonic time.

    Raises:
        RequestTimeoutError: If the compression has not ended at ``deadline``.
    """
    # A broker may refuse the larger, uncompressed body. Old senders use zlib and do not set a flag for the type; then only the size
    # of the record shows that the body was compressed.
    body, kind = received.body, compression_type(received.sys_flag)
    if not received.sys_flag & constants.COMPRESSION_TYPE_MASK and not 0 < received.store_size < len(body):
        return body, 0
    try:
        packed = await instance.threads.run(partial(compress, body, kind), deadline)
    except TimeoutError:
        text = (
            f"message {printable(received.msg_id)} was not sent again, because compressing its {len(body)} bytes took too long; "
            "call again, or raise request_timeout"
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
"""Properties that would make a broker delay or hide the copy, or also store it in other queues."""


async def send_back(
    instance: ClientInstance, group: str, topic: str, message: MessageExt, *, level: int, max_times: int | None
) -> None:
    """Give ``message`` back to the broker that it came from. Return when the broker has stored its copy.

    Args:
        group: Name of the group on the wire.
        topic: Name on the wire of the topic to which the message was first sent.
        level: Delay level from 1 to 18. 0 lets the broker choose by the number of attempts; -1 makes the message a dead letter.
        max_times: Maximum number of deliveries after the first one; None for the group's setting.

    Raises:
        BrokerError: If the broker refuses the request. The code is 1 if the broker no longer stores the message.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``. After RequestTimeoutError and ConnectionLostError with
            ``maybe_stored``, the copy may be stored.
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
    """Send a copy of ``message`` to the retry topic of ``group`` at ``broker``. Return when the broker has stored the copy.

    Args:
        group: Name of the group on the wire.
        topic: Name on the wire of the topic to which the message was first sent.
        level: Delay level. 0 makes the broker turn the copy into a dead letter.
        max_times: Maximum number of deliveries after the first one. It is stored with the copy, for the consumers that read it.

    Raises:
        BrokerError: If the broker refuses the copy.
        RocketMQError: Other errors of ``ClientInstance.ask_broker``. After RequestTimeoutError and ConnectionLostError with
            ``maybe_stored``, the copy may be stored.
    """
    times = message.reconsume_times + 1
    body, sys_flag = await body_as_stored(instance, message, machine.monotonic() + instance.config.request_timeout)
    properties: dict[str, str | None] = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    if (lite_topic := properties.pop(constants.PropertyName.LITE_TOPIC, None)) is not None:  # else the copy would be in it, too
        properties[DEAD_LITE_TOPIC] = lite_topic
        for name in (constants.PropertyName.INNER_MULTI_DISPATCH, constants.PropertyName.INNER_MULTI_QUEUE_OFFSET):
            properties.pop(name, None)
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
        e=-1,  # the broker chooses the queue
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
    """Return the names of the brokers on which the retry topic of ``group`` has write queues, according to its route.

    Request the route if it is unknown. Return an empty tuple if the request fails.
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
    """Return the name of the broker that stores ``message``. For a static topic, the routes in use determine it."""
    # The queue of a static topic does not name the broker, and another broker may hold the queue now.
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
