"""Answers of brokers above this client's ``max_frame_size``: by default such an answer has up to 256 KiB."""

from __future__ import annotations

import os

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, PullConsumer
from rmq_async.errors import FrameTooLargeError
from rmq_async.testing.cluster import ExternalCluster, RealCluster

from ..consumer.group.support import until

Cluster = RealCluster | ExternalCluster
LIMIT = 65_536


async def fill(namesrv: str, topic: str, *bodies: bytes) -> None:
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=1)
    async with Producer("fills", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, keys="large"))


async def test_messages_arrive_though_answers_are_above_max_frame_size(each_cluster: Cluster) -> None:
    topic, bodies = f"Large{os.urandom(4).hex()}", [os.urandom(20_000) for _ in range(24)]
    await fill(each_cluster.namesrv, topic, *bodies)
    options = {"namesrv": each_cluster.namesrv, "max_frame_size": LIMIT}
    async with PullConsumer("large", **options) as reader:
        assert [message.body async for message in reader.read(topic)] == bodies
    async with Admin(**options) as admin:
        found = await admin.query_message(topic, "large", max_num=2)
        assert {message.body for message in found} == {*bodies[-2:]}
    for mode in ("pull", "pop") if each_cluster.version != "4.9.7" else ("pull",):
        seen: list[bytes] = []

        def handle(message: MessageExt, seen: list[bytes] = seen) -> None:
            assert message.reconsume_times == 0
            seen.append(message.body)

        consumer = Consumer(f"{topic}-{mode}", mode=mode, start_from="earliest", **options)
        consumer.subscribe(topic, handle)
        async with consumer:
            await until(lambda seen=seen: len(seen) >= 24, 20)
        assert sorted(seen) == sorted(bodies)


async def test_queue_stays_at_a_message_above_max_frame_size(each_cluster: Cluster) -> None:
    topic, large = f"Large{os.urandom(4).hex()}", os.urandom(100_000)
    await fill(each_cluster.namesrv, topic, b"0", large, b"2")
    options = {"namesrv": each_cluster.namesrv, "max_frame_size": LIMIT}
    queue = MessageQueue(topic, "broker-a", 0)
    async with PullConsumer("large", **options) as reader:
        with pytest.raises(FrameTooLargeError, match="the message at offset 1 of"):
            await reader.pull(queue, 1)
        assert [message.body for message in (await reader.pull(queue, 2)).messages] == [b"2"]
    seen: list[bytes] = []
    consumer = Consumer(f"{topic}-g", start_from="earliest", **options)
    consumer.subscribe(topic, lambda message: seen.append(message.body))
    async with consumer:
        await until(lambda: consumer.health().problems, 20)
        (problem,) = consumer.health().problems
        assert (problem.code, problem.queue, seen) == ("queue_unreadable", queue, [b"0"])
        assert consumer.lag().messages == 2
    consumer = Consumer(f"{topic}-g", namesrv=each_cluster.namesrv)
    consumer.subscribe(topic, lambda message: seen.append(message.body))
    async with consumer:
        await until(lambda: len(seen) == 3, 20)
    assert seen == [b"0", large, b"2"]
