"""Topics with an order conf on real servers: no key moves while a broker is away."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from rmq_async import Admin, BrokerNotFoundError, Message, MessageQueue, Producer
from rmq_async.testing.cluster import OLD_VERSION, RealCluster

KEYS = [f"k{number}" for number in range(16)]


async def keeps_keys(cluster: RealCluster) -> None:
    """Name servers with ``orderMessageEnable=true`` are required."""
    topic = f"Kept{uuid4().hex[:8]}"

    async def queue_of(producer: Producer, key: str, timeout: float) -> MessageQueue | None:
        try:
            return (await producer.send(Message(topic, b"x"), key=key, timeout=timeout)).queue
        except BrokerNotFoundError:
            return None

    async with (
        Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
        Producer("senders", namesrv=cluster.namesrv, route_poll_interval=0.5) as producer,
    ):
        await admin.create_topic(topic, queues=4, order=True)
        names = [broker.name for broker in cluster.brokers]
        listed = tuple(MessageQueue(topic, name, queue_id) for name in names for queue_id in range(4))
        before = {key: await queue_of(producer, key, 3.0) for key in KEYS}
        assert {queue.broker_name for queue in before.values() if queue is not None} == {*names}
        victim = cluster.brokers[1]
        await victim.kill()
        async with asyncio.timeout(20):
            while len((await admin.topic_route(topic)).broker_datas) > 1:
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)  # the producer has polled the route
        assert await producer.fetch_publish_queues(topic) == listed
        for key, queue in before.items():
            assert queue is not None
            assert await queue_of(producer, key, 0.3) == (None if queue.broker_name == victim.name else queue)
        assert {(await producer.send(Message(topic, b"x"))).queue.broker_name for _ in range(8)} == {names[0]}
        there = next(key for key, queue in before.items() if queue is not None and queue.broker_name == victim.name)
        waiting = asyncio.ensure_future(queue_of(producer, there, 30.0))
        await victim.start()
        assert await waiting == before[there]
        assert {key: await queue_of(producer, key, 5.0) for key in KEYS} == before


async def test_no_key_moves_while_a_broker_is_away(two_brokers: RealCluster) -> None:
    await keeps_keys(two_brokers)


@pytest.mark.deep
async def test_no_key_moves_while_an_old_broker_is_away() -> None:
    conf = {"orderMessageEnable": "true"}
    async with RealCluster(version=OLD_VERSION, brokers=2, namesrv_conf=conf) as cluster:
        await keeps_keys(cluster)
