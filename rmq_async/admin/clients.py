"""Combines the responses of several brokers: the queues of a topic, and the clients of a group."""

from __future__ import annotations

from typing import Final

from rmq_protocol.bodies import Connection, ConsumerConnection, ConsumeStats, ProducerConnection, TopicStatsTable
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.heartbeat import SubscriptionData
from rmq_protocol.json_body import decode_body
from rmq_protocol.message import MessageQueue

from .. import machine
from .._text import printable
from ..client import ClientInstance, max_offset, min_offset, store_time_ms
from ..errors import GroupNotOnlineError
from .requests import brokers_of, cluster_info, everywhere, masters_of
from .results import ClientConnection, ConsumerConnections, QueueLag, QueueStats, TopicStats

_NO_SUCH_PRODUCERS: Final = ResponseCode.SYSTEM_ERROR, "not exist"
"""Code and remark with which a broker reports that no producer of the group is connected."""
_NOT_ONLINE: Final = ResponseCode.CONSUMER_NOT_ONLINE, ""


async def stats(instance: ClientInstance, topic: str, deadline: float) -> TopicStats:
    """Implement ``Admin.topic_stats``."""
    route = (await instance.routes.fetch(topic, max(deadline - machine.monotonic(), 0.0))).data
    brokers = brokers_of(route)
    command = RemotingCommand(code=RequestCode.GET_TOPIC_STATS_INFO, ext_fields={"topic": topic})
    queues: dict[MessageQueue, QueueStats] = {}
    tps = 0.0
    for response in (await everywhere(instance, brokers, command, deadline)).values():
        table = decode_body(TopicStatsTable, response.body)
        tps += table.topic_put_tps
        for queue, offsets in table.offset_table.items():
            queues[queue] = QueueStats(offsets.min_offset, offsets.max_offset, offsets.last_update_timestamp)
    for data in route.queue_datas:
        for queue_id in range(data.write_queue_nums, data.read_queue_nums):
            queue = MessageQueue(topic, data.broker_name, queue_id)
            if queue not in queues and data.broker_name in brokers:
                queues[queue] = await _stats_of(instance, queue, deadline)
    return TopicStats({instance.names.shown_queue(queue): queues[queue] for queue in sorted(queues)}, tps)


async def _stats_of(instance: ClientInstance, queue: MessageQueue, deadline: float) -> QueueStats:
    """Return the offsets of a queue that is readable but not writable. Brokers of 4.x leave such queues out of
    GET_TOPIC_STATS_INFO.
    """
    low = await min_offset(instance, queue, timeout=max(deadline - machine.monotonic(), 0.0))
    high = await max_offset(instance, queue, timeout=max(deadline - machine.monotonic(), 0.0))
    last_ms = (
        max(await store_time_ms(instance, queue, high - 1, max(deadline - machine.monotonic(), 0.0)), 0) if high > low else 0
    )
    return QueueStats(low, high, last_ms)


def lags_in(body: bytes) -> dict[MessageQueue, QueueLag]:
    """Return a group's progress in the queues that a response to GET_CONSUME_STATS names."""
    return {
        queue: QueueLag(
            each.consumer_offset, each.broker_offset, max(each.pull_offset - each.consumer_offset, 0), each.last_timestamp
        )
        for queue, each in decode_body(ConsumeStats, body).offset_table.items()
    }


async def producers(instance: ClientInstance, group: str, deadline: float) -> tuple[ClientConnection, ...]:
    """Implement ``Admin.producer_connections``."""
    brokers = masters_of(await cluster_info(instance, deadline))
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    command = RemotingCommand(code=code, ext_fields={"producerGroup": group})
    found: list[ClientConnection] = []
    for name, response in (await everywhere(instance, brokers, command, deadline, absent=_NO_SUCH_PRODUCERS)).items():
        found += [_shown(name, each) for each in decode_body(ProducerConnection, response.body).connection_set]
    return _some(found, "producer", instance.names.display_name(group), code, brokers)


async def consumers(instance: ClientInstance, group: str, deadline: float) -> ConsumerConnections:
    """Implement ``Admin.consumer_connections``."""
    brokers = masters_of(await cluster_info(instance, deadline))
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    command = RemotingCommand(code=code, ext_fields={"consumerGroup": group})
    found: list[ClientConnection] = []
    subscriptions: dict[str, SubscriptionData] = {}
    answer = ConsumerConnection()
    for name, response in (await everywhere(instance, brokers, command, deadline, absent=_NOT_ONLINE)).items():
        answer = decode_body(ConsumerConnection, response.body)
        found += [_shown(name, each) for each in answer.connection_set]
        for topic, subscription in answer.subscription_table.items():
            if topic not in subscriptions or subscriptions[topic].sub_version < subscription.sub_version:
                subscriptions[topic] = subscription
    return ConsumerConnections(
        connections=_some(found, "consumer", instance.names.display_name(group), code, brokers),
        subscriptions={instance.names.shown(topic): each for topic, each in sorted(subscriptions.items())},
        consume_type=answer.consume_type or "",
        message_model=answer.message_model or "",
        consume_from_where=answer.consume_from_where or "",
    )


def _shown(broker: str, connection: Connection) -> ClientConnection:
    return ClientConnection(broker, connection.client_id, connection.client_addr, connection.language or "", connection.version)


def _some(
    found: list[ClientConnection], kind: str, group: str, code: RequestCode, brokers: dict[str, str]
) -> tuple[ClientConnection, ...]:
    if not found:
        where = printable(", ".join(brokers))
        raise GroupNotOnlineError(
            f"no {kind} of group {group} is connected to {where}; start one, or check the group's name", request=code.name
        )
    return tuple(sorted(found, key=lambda each: (each.client_id, each.broker, each.address)))
