"""Lite topics on a real broker: the example, the outcomes of their messages, and a broker without the settings."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from rmq_async import Admin, Consumer, DeadLetter, Message, MessageExt, Producer, RetryLater
from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.errors import ForbiddenError
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .dead_letters import readable_dead_letters

EXAMPLE = Path(__file__).parents[2] / "examples" / "lite_topics.py"
TOPIC = "RoomTopic"


async def run_the_example(cluster: RealCluster) -> dict[str, Any]:
    """Runs the example with a topic of type LITE; returns its names."""
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(TOPIC, queues=2, attributes={"message.type": "LITE"}, broker="broker-a")
    names = runpy.run_path(str(EXAMPLE), run_name="example")
    assert await names["talk"](cluster.namesrv) == ["garden", "kitchen"]
    return names


async def stored(cluster: RealCluster, lite_topic: str) -> int:
    """Returns how many messages the lite topic has."""
    instance = await ClientInstance.acquire(ClientConfig(namesrv=cluster.namesrv, instance_name="operator"))
    try:
        fields = {"parentTopic": TOPIC, "liteTopic": lite_topic}
        command = RemotingCommand(code=RequestCode.GET_LITE_TOPIC_INFO, ext_fields=fields)
        response, _ = await instance.ask_broker("broker-a", TOPIC, command, 3)
    finally:
        await instance.release()
    assert response.code == 0, response.remark
    return int(json.loads(bytes(response.body or b""))["topicOffset"]["maxOffset"])


async def outcomes(cluster: RealCluster, mode: Any) -> list[tuple[bytes, int, str]]:
    """Consumes the parent; returns body, attempt and lite topic of each delivery, after that of each dead letter."""
    seen: list[tuple[bytes, int, str]] = []
    consumer = Consumer(f"lite-{mode}", namesrv=cluster.namesrv, mode=mode, start_from="earliest")

    @consumer.handler(TOPIC)
    async def handle(message: MessageExt) -> None:
        assert message.topic == TOPIC
        seen.append((message.body, message.reconsume_times + 1, message.properties["__LITE_TOPIC"]))
        if message.body == b"dead":
            raise DeadLetter("on purpose")
        if message.body == b"later" and not message.reconsume_times:
            raise RetryLater(0.5)

    async with consumer:
        await consumer.wait_settled(5, timeout=20)
        await consumer.wait_idle(timeout=5)
        stats = consumer.stats()
        assert (stats.handled, stats.retried, stats.dead_lettered) == (3, 1, 1)
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        dead = await readable_dead_letters(admin, f"lite-{mode}", 1)
    return [*sorted(seen), *((message.body, 0, message.properties["__LITE_TOPIC"]) for message in dead)]


async def test_lite_topics_are_consumed_through_their_parent(feature_cluster: RealCluster) -> None:
    example = await run_the_example(feature_cluster)
    assert [await stored(feature_cluster, room) for room in ("kitchen", "garden", "cellar")] == [1, 1, 0]
    async with Producer("lite", namesrv=feature_cluster.namesrv, hooks=[example["LiteTopics"]()]) as producer:
        for body in (b"later", b"dead"):
            await producer.send(Message(TOPIC, body, properties={"room": body.decode()}))
        with pytest.raises(ForbiddenError, match="names no lite topic"):
            await producer.send(Message(TOPIC, b"x", properties={"room": "a$b"}))  # it would stop the broker's dispatch
        with pytest.raises(ForbiddenError, match="one by one"):
            await producer.send_batch([Message(TOPIC, b"x", properties={"room": "kitchen"})] * 2)
    expected = [(b"dead", 1, "dead"), (b"hello", 1, "garden"), (b"hello", 1, "kitchen")]
    expected += [(b"later", 1, "later"), (b"later", 2, "later"), (b"dead", 0, "dead")]
    assert await outcomes(feature_cluster, "pop") == expected
    assert await outcomes(feature_cluster, "pull") == expected
    assert [await stored(feature_cluster, room) for room in ("later", "dead")] == [1, 3]  # each dead letter once more


async def test_lite_topics_of_a_broker_without_the_settings_are_empty(cluster: RealCluster | ExternalCluster) -> None:
    if isinstance(cluster, ExternalCluster):
        pytest.skip("NAMESRV_ADDR names the cluster to test, which may have the settings")
    await run_the_example(cluster)
    assert [await stored(cluster, room) for room in ("kitchen", "garden")] == [0, 0]
