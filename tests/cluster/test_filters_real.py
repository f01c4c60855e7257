"""SQL92 filters on real brokers: conditions beside the embedded broker's, a group with one, and how a start fails."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from pathlib import Path

import pytest

from rmq_async import Admin, ConfigError, Consumer, Message, MessageExt, Producer, PullConsumer
from rmq_async._ordered import OrderedSet
from rmq_async.embedded.sql92 import ConditionError, compile_condition
from rmq_async.reading.pull import PullRequest, pull_once
from rmq_async.testing.cluster import ExternalCluster, RealCluster

from ..support.instances import client_of

VECTORS = json.loads((Path(__file__).parents[1] / "embedded" / "conditions.json").read_text())


async def new_topic(namesrv: str, queues: int) -> str:
    topic = f"Filters_{uuid.uuid4().hex}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


def wanted(text: str, messages: list[MessageExt]) -> list[int]:
    """Offsets that a broker delivers: of all messages where it cannot read the condition of a pull."""
    try:
        condition = compile_condition(text)
    except ConditionError:
        return [message.queue_offset for message in messages]
    return [message.queue_offset for message in messages if condition.matches(message.properties)]


async def test_conditions_filter_as_in_the_embedded_broker(feature_cluster: RealCluster) -> None:
    namesrv = feature_cluster.namesrv
    topic = await new_topic(namesrv, 1)
    async with Producer("filters", namesrv=namesrv) as producer:
        for properties in VECTORS[0]:
            await producer.send(
                Message(topic, b"body", properties={name: value for name, value in properties.items() if value})
            )
    conditions = [text for text, _ in VECTORS[1::5] if text]
    async with PullConsumer("filters", namesrv=namesrv) as consumer:
        messages = [message async for message in consumer.read(topic)]
        assert len(messages) == len(VECTORS[0])
        instance = await client_of(consumer)
        (queue,) = await consumer.queues(topic)
        different = []
        for text in conditions:
            result = await pull_once(instance, PullRequest("filters", queue, 0, 32, "*", 0.0, 5.0, text), OrderedSet())
            assert (result.next_offset, result.lost) == (len(messages), ())
            if (found := [message.queue_offset for message in result.messages]) != wanted(text, messages):
                different.append((text, found, wanted(text, messages)))
    print(len(conditions), "conditions")
    assert different == []
    assert len(conditions) > 100


async def test_group_gets_what_matches(feature_cluster: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    namesrv = feature_cluster.namesrv
    topic = await new_topic(namesrv, 2)
    handled: list[bytes] = []
    consumer = Consumer(f"filters-{uuid.uuid4().hex}", namesrv=namesrv)

    @consumer.handler(topic, sql="a > 5 AND region = 'eu'")
    async def handle(message: MessageExt) -> None:
        handled.append(message.body)

    async with consumer, Producer("filters", namesrv=namesrv) as producer:
        for number in range(40):
            properties = {"a": str(number), "region": "eu" if number % 2 else "us"}
            await producer.send(Message(topic, b"%d" % number, properties=properties))
        async with asyncio.timeout(20):
            while len(handled) < 17:
                await asyncio.sleep(0.05)
        await consumer.wait_idle(timeout=20)
        assert consumer.health().problems == ()
        assert consumer.lag().messages == 0
    print("sent 40, handled", len(handled))
    assert sorted(handled) == sorted(b"%d" % number for number in range(7, 40, 2))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_start_names_condition_broker_and_place(feature_cluster: RealCluster) -> None:
    topic = await new_topic(feature_cluster.namesrv, 1)
    consumer = Consumer(f"filters-{uuid.uuid4().hex}", namesrv=feature_cluster.namesrv)
    consumer.subscribe(topic, print, sql="a > 'x'")
    with pytest.raises(ConfigError) as failed:
        await consumer.start()
    assert f"broker broker-a cannot parse the sql filter \"a > 'x'\" of topic {topic}" in str(failed.value)
    assert "cannot be compared" in str(failed.value)
    assert failed.value.code == 23


async def test_start_names_the_setting_of_a_stock_broker(each_cluster: RealCluster | ExternalCluster) -> None:
    topic = await new_topic(each_cluster.namesrv, 1)
    consumer = Consumer(f"filters-{uuid.uuid4().hex}", namesrv=each_cluster.namesrv)
    consumer.subscribe(topic, print, sql="a > 5")
    with pytest.raises(ConfigError, match="set enablePropertyFilter=true in the broker's configuration") as failed:
        await consumer.start()
    assert failed.value.code == 1
