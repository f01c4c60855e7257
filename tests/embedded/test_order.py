"""What has no order of its own comes in the order in which it was made, in every process: runs with one seed are equal."""

from __future__ import annotations

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.bodies import ConsumeStats, decode_body
from rmq_protocol.constants import RequestCode
from rmq_protocol.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat

from ..support.fakes import RawClient, pull_fields, send_fields
from .inside import broker_of

NAMES = [f"{number * 7919 % 1009:x}" for number in range(40)]
"""Names that no set has in this order."""


async def test_notices_of_changed_groups_come_in_order_of_the_changes(broker: RawClient) -> None:
    consumers = tuple(ConsumerData(name, subscription_data_set=(SubscriptionData("T"),)) for name in NAMES)
    await broker.ask(RequestCode.HEART_BEAT, None, encode_heartbeat(HeartbeatData("c", (), consumers)))
    notices = [await broker.request() for _ in NAMES]
    assert [(notice.ext_fields or {})["consumerGroup"] for notice in notices] == NAMES


async def test_held_pulls_are_answered_in_order_of_arrival(broker: RawClient) -> None:
    await broker.create_topic("T", len(NAMES))
    fields = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}
    pulls = [broker.write(RequestCode.PULL_MESSAGE, pull_fields("T", queue_id, **fields)) for queue_id in range(len(NAMES))]
    order = [number * 7 % len(NAMES) for number in range(len(NAMES))]
    async with RawClient(broker.address) as sender:
        for queue_id in order:  # in one write, so that one read brings nearly all
            sender.write(RequestCode.SEND_MESSAGE_V2, send_fields("T", queue=queue_id), b"x")
        assert [(await sender.read()).code for _ in order] == [0] * len(order)
    assert [(await broker.read()).opaque for _ in pulls] == [pulls[queue_id] for queue_id in order]


async def test_connections_are_walked_in_order_of_arrival(server: EmbeddedRocketMQ) -> None:
    clients = [RawClient(server.brokers["broker-a"]) for _ in range(30)]
    try:
        for client in clients:
            await client.__aenter__()
            await client.ask(9999)
        assert [connection.remote for connection in broker_of(server).listener.connections] == [
            client.local for client in clients
        ]
    finally:
        for client in clients:
            await client.__aexit__(None, None, None)


async def test_statistics_list_topics_in_order_of_commits(broker: RawClient) -> None:
    await broker.pull("TBW102")  # makes the group
    for name in NAMES:
        await broker.create_topic(name, 1)
        commit = {"consumerGroup": "CG", "topic": name, "queueId": "0", "commitOffset": "0"}
        assert (await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
    response = await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "CG"})
    assert [queue.topic for queue in decode_body(ConsumeStats, response.body).offset_table] == NAMES
