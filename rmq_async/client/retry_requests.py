"""Gives a message back to its broker: for another delivery after a delay, or as a dead letter.

CONSUMER_SEND_MSG_BACK (36) names a stored message by its commit log offset; the broker copies the message into the retry topic
of the group, or into its dead-letter topic. Where the message is no longer stored, the client can send a copy itself
(``send_dead_letter``): brokers turn a send to the retry topic into a dead letter if its header's reconsume times are above the
header's maximum; 4.9.7 does so only for a message without a delay.
"""

from __future__ import annotations

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import (
    AUTO_CREATE_TOPIC_KEY,
    LOGICAL_QUEUE_MOCK_BROKER_PREFIX,
    RETRY_TOPIC_PREFIX,
    PropertyName,
    RequestCode,
    ResponseCode,
)
from rmq_protocol.headers import ConsumerSendMsgBackRequestHeader, SendMessageRequestHeaderV2, to_ext
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import properties_text

from .. import machine
from ..broker_answers import broker_error
from .instance import ClientInstance

__all__ = ["send_back", "send_dead_letter"]


async def send_back(
    instance: ClientInstance, group: str, topic: str, message: MessageExt, *, level: int, max_times: int | None
) -> None:
    """Gives ``message`` back to the broker that it came from; returns when the broker has stored its copy.

    ``group``, ``topic``: names on the wire, ``topic`` the one that the message was sent to first. ``level``: 1 to 18, 0 for the
    broker's choice by attempts, -1 for a dead letter. ``max_times``: deliveries after the first; None for the group's setting.

    Raises BrokerError (code 1 where the broker no longer stores the message) and the errors of a request; after
    RequestTimeoutError and ConnectionLostError with ``maybe_stored`` the copy may be stored.
    """
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.commit_log_offset,
        group=group,
        delayLevel=level,
        originMsgId=message.msg_id,
        originTopic=topic,
        maxReconsumeTimes=max_times,
        bname=(broker_name := _broker_of(instance, topic, message)),
    )
    command = RemotingCommand(code=RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields={**to_ext(header)})
    await _ask(instance, broker_name, topic, command)


async def send_dead_letter(instance: ClientInstance, group: str, topic: str, message: MessageExt) -> None:
    """Sends a copy of ``message`` that its broker turns into a dead letter of ``group``. Names are as for ``send_back``. Raises
    BrokerError and the errors of a request."""
    retry_topic = RETRY_TOPIC_PREFIX + group
    times = message.reconsume_times + 1
    properties: dict[str, str | None] = {
        name: value for name, value in message.properties.items() if name not in (PropertyName.DELAY, PropertyName.TRAN_MSG)
    }
    properties.setdefault(PropertyName.RETRY_TOPIC, topic)
    properties.setdefault(PropertyName.ORIGIN_MESSAGE_ID, message.offset_msg_id)
    properties[PropertyName.RECONSUME_TIME] = str(times)
    properties[PropertyName.MAX_RECONSUME_TIMES] = "0"
    header = SendMessageRequestHeaderV2(
        a=group,
        b=retry_topic,
        c=AUTO_CREATE_TOPIC_KEY,
        d=1,
        e=0,
        f=0,
        g=round(machine.time() * 1000),
        h=message.flag,
        i=properties_text(properties),
        j=times,
        k=False,
        l=0,
        m=False,
        n=(broker_name := _broker_of(instance, topic, message)),
    )
    command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields={**to_ext(header)}, body=message.body)
    await _ask(instance, broker_name, topic, command)


def _broker_of(instance: ClientInstance, topic: str, message: MessageExt) -> str:
    """Returns the name of the broker that stores ``message``, for a static topic as far as the routes show it."""
    # The queue of a static topic does not name the broker, and another one may hold that queue by now.
    queue = message.queue
    if not queue.broker_name.startswith(LOGICAL_QUEUE_MOCK_BROKER_PREFIX):
        return queue.broker_name
    stored_by = [name for name, address in instance.routes.masters().items() if address == message.store_host]
    return stored_by[0] if stored_by else instance.routes.broker_of(MessageQueue(topic, queue.broker_name, queue.queue_id))


async def _ask(instance: ClientInstance, broker_name: str, topic: str, command: RemotingCommand) -> None:
    response, address = await instance.ask_broker(broker_name, topic, command, instance.config.request_timeout)
    if response.code != ResponseCode.SUCCESS:
        raise broker_error(
            response.code, response.remark, request=RequestCode(command.code).name, broker=broker_name, address=address
        )
