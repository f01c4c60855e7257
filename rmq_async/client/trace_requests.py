"""Trace messages of clients that have no producer."""

from __future__ import annotations

from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY, RequestCode, ResponseCode
from rmq_protocol.headers import SendMessageRequestHeaderV2, to_ext
from rmq_protocol.message import Message, MessageQueue
from rmq_protocol.properties import message_properties

from .. import machine
from ..broker_answers import broker_error
from ..errors import RocketMQError, TopicNotFoundError
from .instance import ClientInstance
from .trace_records import TRACE_TIMEOUT

STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
QUEUES: Final = 4
"""Queues per broker of a trace topic that brokers create."""


async def send_trace(instance: ClientInstance, group: str, message: Message, deadline: float) -> None:
    """Send a trace message by ``deadline`` (monotonic), in at most two attempts, on two brokers if the topic has them.

    Raises as ``ClientInstance.ask_broker`` does, too.

    Args:
        group: The header's producer group, by its name on the wire.

    Raises:
        TopicNotFoundError: If the topic does not exist and no broker offers to create it, and if no master has it with write
            permission.
        NameServerError: If no name server answers usably;.
    """
    topic = instance.names.wire(message.topic)
    route = await instance.routes.get(
        topic, deadline - machine.monotonic(), create_key=AUTO_CREATE_TOPIC_KEY, default_queues=QUEUES
    )
    queues = route.reachable_queues
    if not queues:
        raise TopicNotFoundError(
            f"no master has trace topic {message.topic} with write permission; give it perm 6, or turn tracing off"
        )
    first = machine.random.choice(queues)
    properties = message_properties(message, instance.unique_ids.next())
    try:
        await _send(instance, group, message, first, properties, min(deadline, machine.monotonic() + TRACE_TIMEOUT / 2))
    except RocketMQError as error:
        if not error.retriable:
            raise
        others = [queue for queue in queues if queue.broker_name != first.broker_name] or queues
        await _send(instance, group, message, machine.random.choice(others), properties, deadline)


async def _send(
    instance: ClientInstance, group: str, message: Message, queue: MessageQueue, properties: str, deadline: float
) -> None:
    broker_name = instance.routes.broker_of(queue)
    header = SendMessageRequestHeaderV2(
        a=group,
        b=queue.topic,
        c=AUTO_CREATE_TOPIC_KEY,
        d=QUEUES,
        e=queue.queue_id,
        f=0,
        g=round(machine.time() * 1000),
        h=message.flag,
        i=properties,
        j=0,
        k=instance.config.unit_mode,
        l=None,
        m=False,
        n=broker_name,
    )
    command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields={**to_ext(header)}, body=message.body)
    left = max(deadline - machine.monotonic(), 0.0)
    response, address = await instance.ask_broker(broker_name, queue.topic, command, left)
    if response.code not in STORED:
        raise broker_error(response.code, response.remark, request="SEND_MESSAGE_V2", broker=broker_name, address=address)
