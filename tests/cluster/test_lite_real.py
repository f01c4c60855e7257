"""Lite topics and priorities on real brokers: sends, the outcomes of messages, and brokers that do not serve lite topics."""

from __future__ import annotations

import asyncio
import json
import runpy
import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rmq_async import (
    Admin,
    Consumer,
    DeadLetter,
    LiteConsumer,
    LiteStart,
    LiteStream,
    LiteSubscriptionLostError,
    Message,
    MessageExt,
    Producer,
    Retry,
    RetryLater,
    Tail,
)
from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.errors import ConfigError
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from .dead_letters import readable_dead_letters

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lite_topics.py"
VECTORS = ROOT / "protocol" / "vectors" / "lite_topics.json"
TOPIC = "RoomTopic"


async def new_topic(cluster: RealCluster, kind: str, queues: int, topic: str = "") -> str:
    topic = topic or f"{kind}_{uuid.uuid4().hex}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues, attributes={"message.type": kind})
    return topic


async def looked_up(cluster: RealCluster, topic: str, names: Sequence[str]) -> dict[str, dict[str, tuple[int, bool]]]:
    """Returns of each lite topic, by broker: the number of its messages, and whether the broker calls itself its shard."""
    instance = await ClientInstance.acquire(ClientConfig(namesrv=cluster.namesrv, instance_name="operator"))
    found: dict[str, dict[str, tuple[int, bool]]] = {}
    try:
        for name in names:
            for broker in cluster.brokers:
                fields = {"parentTopic": topic, "liteTopic": name}
                command = RemotingCommand(code=RequestCode.GET_LITE_TOPIC_INFO, ext_fields=fields)
                response, _ = await instance.ask_broker(broker.name, topic, command, 3)
                assert response.code == 0, response.remark
                body = json.loads(bytes(response.body))
                found.setdefault(name, {})[broker.name] = body["topicOffset"]["maxOffset"], body["shardingToBroker"]
    finally:
        await instance.release()
    return found


async def stored(cluster: RealCluster, lite_topic: str) -> int:
    """Returns how many messages the lite topic has."""
    return (await looked_up(cluster, TOPIC, [lite_topic]))[lite_topic]["broker-a"][0]


@pytest.fixture(scope="module")
def lite_brokers() -> Iterator[RealCluster]:
    """Two brokers that serve lite topics. The files of their queues have names that are not ASCII, too."""
    settings = {"enableLmq": "true", "enableMultiDispatch": "true"}
    cluster = RealCluster(brokers=2, broker_conf=settings)
    asyncio.run(cluster.start())
    yield cluster
    asyncio.run(cluster.stop())


async def test_lite_messages_are_in_the_lite_topics_of_the_brokers_that_serve_them(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    names = [case["in"]["name"] for case in json.loads(VECTORS.read_text())["cases"]]
    names = [name for name in names if name.isascii()]
    async with Producer("lite", namesrv=lite_brokers.namesrv) as producer:
        for number in range(3):
            for name in names:
                await producer.send(Message(topic, b"%d" % number, lite_topic=name))
        for name in names:
            await (await producer.send_async(Message(topic, b"async", lite_topic=name)))
            await producer.send_oneway(Message(topic, b"oneway", lite_topic=name))
        await producer.flush()

    async def complete() -> bool:
        found = await looked_up(lite_brokers, topic, names)
        return all(sorted(each.values()) == [(0, False), (5, True)] for each in found.values())

    async with asyncio.timeout(20):
        while not await complete():  # brokers add a message to its lite topic a moment after its acknowledgement
            await asyncio.sleep(0.1)
    assert {max(each, key=lambda name: each[name]) for each in (await looked_up(lite_brokers, topic, names)).values()} == {
        "broker-a",
        "broker-b",
    }


async def test_priorities_of_a_real_broker_come_in_order_by_pop(lite_brokers: RealCluster) -> None:
    """Eight priorities on two brokers, sent in any order, and one above the number of queues."""
    topic = await new_topic(lite_brokers, "PRIORITY", 8)
    seen: dict[str, list[int]] = {}
    async with Producer("planners", namesrv=lite_brokers.namesrv) as producer:
        for number in range(80):
            result = await producer.send(Message(topic, b"x", priority=number * 5 % 8))
            assert result.queue.queue_id == number * 5 % 8
        assert (await producer.send(Message(topic, b"x", priority=1000))).queue.queue_id == 7
    group = f"workers-{uuid.uuid4().hex}"
    consumer = Consumer(
        group, namesrv=lite_brokers.namesrv, mode="pop", start_from="earliest", concurrency=1, pull_size=1, buffered_limit=1
    )

    @consumer.handler(topic)
    async def work(message: MessageExt) -> None:
        assert message.priority is not None
        seen.setdefault(message.queue.broker_name, []).append(min(message.priority, 7))

    async with consumer:
        await consumer.wait_settled(81, timeout=60)
    assert sum(map(len, seen.values())) == 81
    for order in seen.values():
        assert order == sorted(order, reverse=True)


async def outcomes(cluster: RealCluster, mode: Any) -> list[tuple[bytes, int, str]]:
    """Consumes the parent; returns body, attempt and lite topic of each delivery, after that of each dead letter."""
    seen: list[tuple[bytes, int, str]] = []
    consumer = Consumer(f"lite-{mode}", namesrv=cluster.namesrv, mode=mode, start_from="earliest")

    @consumer.handler(TOPIC)
    async def handle(message: MessageExt) -> None:
        assert message.topic == TOPIC
        seen.append((message.body, message.reconsume_times + 1, message.lite_topic or ""))
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
    return [*sorted(seen), *((message.body, 0, message.lite_topic or "") for message in dead)]


async def test_lite_topics_are_consumed_through_their_parent(feature_cluster: RealCluster) -> None:
    await new_topic(feature_cluster, "LITE", 2, TOPIC)
    example = runpy.run_path(str(EXAMPLE), run_name="example")
    assert await example["talk"](feature_cluster.namesrv) == ["garden", "kitchen"]
    assert [await stored(feature_cluster, room) for room in ("kitchen", "garden", "cellar")] == [1, 1, 0]
    async with Producer("lite", namesrv=feature_cluster.namesrv) as producer:
        for body in (b"later", b"dead"):
            await producer.send(Message(TOPIC, body, lite_topic=body.decode()))
    expected = [(b"dead", 1, "dead"), (b"hello", 1, "garden"), (b"hello", 1, "kitchen")]
    expected += [(b"later", 1, "later"), (b"later", 2, "later"), (b"dead", 0, "dead")]
    assert await outcomes(feature_cluster, "pop") == expected
    assert await outcomes(feature_cluster, "pull") == expected
    assert [await stored(feature_cluster, room) for room in ("later", "dead")] == [1, 3]  # each dead letter once more


async def test_lite_sends_are_refused_where_brokers_lack_the_settings_or_the_type(
    cluster: RealCluster | ExternalCluster, feature_cluster: RealCluster
) -> None:
    if isinstance(cluster, ExternalCluster):
        pytest.skip("NAMESRV_ADDR names the cluster to test, which may have the settings")
    await new_topic(cluster, "LITE", 2, TOPIC)
    plain = await new_topic(feature_cluster, "NORMAL", 2)
    async with Producer("lite", namesrv=cluster.namesrv) as producer:
        with pytest.raises(ConfigError, match="has enableLmq=false and enableMultiDispatch=false, so"):
            await producer.send(Message(TOPIC, b"x", lite_topic="kitchen"))
        assert (await producer.send(Message(TOPIC, b"x"))).queue.topic == TOPIC
    async with Producer("lite", namesrv=feature_cluster.namesrv) as producer:
        with pytest.raises(ConfigError, match=rf"topic {plain} at broker .* is not of the type LITE"):
            await producer.send(Message(plain, b"x", lite_topic="kitchen"))


async def test_lite_sends_are_refused_by_a_broker_of_4_9(old_cluster: RealCluster) -> None:
    topic = f"Old_{uuid.uuid4().hex}"
    async with Admin(namesrv=old_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=2)
    async with Producer("lite", namesrv=old_cluster.namesrv) as producer:
        with pytest.raises(ConfigError, match=r"has no lite topics, which need RocketMQ 5\.5\.0 or later"):
            await producer.send(Message(topic, b"x", lite_topic="kitchen"))
        result = await producer.send(Message(topic, b"x", priority=3))
        assert result.queue.topic == topic  # 4.9 keeps the priority, and has no order by it


async def new_group(cluster: RealCluster, topic: str, model: str = "Shared") -> str:
    group = f"gateways-{uuid.uuid4().hex}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_group(group, attributes={"lite.bind.topic": topic, "lite.sub.model": model})
    return group


async def take(stream: LiteStream, count: int) -> list[bytes]:
    async with asyncio.timeout(60):
        return [(await anext(stream)).body for _ in range(count)]


async def test_streams_of_real_brokers_continue_in_another_consumer(lite_brokers: RealCluster) -> None:
    """Each broker has some of the lite topics. One message of each stream is in hand when the first consumer stops."""
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic)
    names = [f"session-{number}" for number in range(8)]
    async with Producer("lite", namesrv=lite_brokers.namesrv) as producer:
        for number in range(6):
            for name in names:
                await producer.send(Message(topic, b"%d" % number, lite_topic=name))

    async def read(consumer: LiteConsumer, name: str, count: int, start: LiteStart = "last") -> list[bytes]:
        async with consumer.stream(name, start=start) as stream:
            return await take(stream, count)

    async with LiteConsumer(group, topic, namesrv=lite_brokers.namesrv) as consumer:
        first = await asyncio.gather(*(read(consumer, name, 3) for name in names))
    assert first == [[b"0", b"1", b"2"]] * 8
    async with LiteConsumer(group, topic, namesrv=lite_brokers.namesrv) as consumer:
        second = await asyncio.gather(*(read(consumer, name, 4) for name in names))
        assert second == [[b"2", b"3", b"4", b"5"]] * 8
        assert await read(consumer, names[0], 2, start=Tail(2)) == [b"4", b"5"]
        assert await read(consumer, names[1], 6, start="earliest") == [b"%d" % number for number in range(6)]
        assert consumer.lite_topics == frozenset()


async def test_handler_of_a_lite_consumer_at_real_brokers_repeats_in_order(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic)
    seen: dict[str, list[bytes]] = {}

    async def handle(message: MessageExt) -> None:
        bodies = seen.setdefault(message.lite_topic or "", [])
        bodies.append(message.body)
        if message.body == b"bad":
            raise DeadLetter("on purpose")
        if message.body == b"later" and bodies.count(b"later") == 1:
            raise RuntimeError("once")

    names = [f"s{number}" for number in range(6)]
    retry = Retry(delays=[0.2])
    async with LiteConsumer(group, topic, handler=handle, namesrv=lite_brokers.namesrv, retry=retry) as consumer:
        await consumer.subscribe(*names)
        async with Producer("lite", namesrv=lite_brokers.namesrv) as producer:
            for body in (b"later", b"bad", b"good"):
                for name in names:
                    await producer.send(Message(topic, body, lite_topic=name))
        await consumer.wait_settled(4 * len(names), timeout=60)
    assert seen == {name: [b"later", b"later", b"bad", b"good"] for name in names}
    async with Admin(namesrv=lite_brokers.namesrv, request_timeout=30.0) as admin:
        dead = await readable_dead_letters(admin, group, len(names))
    assert sorted((message.body, message.lite_topic) for message in dead) == [(b"bad", name) for name in names]


async def test_newer_client_of_an_exclusive_group_takes_over_at_real_brokers(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic, "Exclusive")
    async with (
        Producer("lite", namesrv=lite_brokers.namesrv) as producer,
        LiteConsumer(group, topic, namesrv=lite_brokers.namesrv) as older,
        LiteConsumer(group, topic, namesrv=lite_brokers.namesrv) as newer,
        older.stream("s") as stream,
    ):
        await producer.send(Message(topic, b"0", lite_topic="s"))
        assert await take(stream, 1) == [b"0"]
        async with newer.stream("s") as other:
            with pytest.raises(LiteSubscriptionLostError, match="another client of the group has subscribed to lite topic s"):
                await take(stream, 1)
            await producer.send(Message(topic, b"1", lite_topic="s"))
            assert await take(other, 2) == [b"0", b"1"]
        assert older.lite_topics == frozenset()


async def test_members_of_a_shared_group_share_a_lite_topic_of_real_brokers(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic)
    seen: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        await asyncio.sleep(0.005)
        seen.append(message.body)

    async with (
        Producer("lite", namesrv=lite_brokers.namesrv) as producer,
        LiteConsumer(group, topic, handler=handle, namesrv=lite_brokers.namesrv) as first,
        LiteConsumer(group, topic, handler=handle, namesrv=lite_brokers.namesrv) as second,
    ):
        for consumer in (first, second):
            await consumer.subscribe("s")
        for number in range(60):
            await producer.send(Message(topic, b"%d" % number, lite_topic="s"))
        async with asyncio.timeout(60):
            while first.stats().handled + second.stats().handled < 60:
                await asyncio.sleep(0.05)
    assert seen == [b"%d" % number for number in range(60)]


async def test_streams_of_real_brokers_begin_at_their_starts(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic)
    async with (
        Producer("lite", namesrv=lite_brokers.namesrv) as producer,
        LiteConsumer(group, topic, namesrv=lite_brokers.namesrv) as consumer,
    ):
        for body in (b"0", b"1"):
            await producer.send(Message(topic, body, lite_topic="s"))
        async with consumer.stream("s", start=1) as stream:
            assert await take(stream, 1) == [b"1"]
            message = await asyncio.wait_for(_stored_later(producer, topic, stream), 60)
        async with consumer.stream("s", start=datetime.fromtimestamp(message.store_time_ms / 1000, UTC)) as stream:
            assert await take(stream, 1) == [b"2"]
        async with consumer.stream("s", start="latest") as stream:
            await producer.send(Message(topic, b"3", lite_topic="s"))
            assert await take(stream, 1) == [b"3"]


async def _stored_later(producer: Producer, topic: str, stream: LiteStream) -> MessageExt:
    await asyncio.sleep(0.05)  # so that the store times differ
    await producer.send(Message(topic, b"2", lite_topic="s"))
    return await anext(stream)


async def test_lite_subscriptions_return_after_a_kill_of_a_real_broker(lite_brokers: RealCluster) -> None:
    topic = await new_topic(lite_brokers, "LITE", 4)
    group = await new_group(lite_brokers, topic)
    names = [f"s{number}" for number in range(8)]
    seen: set[tuple[str | None, bytes]] = set()

    async def handle(message: MessageExt) -> None:
        seen.add((message.lite_topic, message.body))

    async with LiteConsumer(group, topic, handler=handle, namesrv=lite_brokers.namesrv) as consumer:
        await consumer.subscribe(*names)
        await lite_brokers.brokers[0].kill()
        await lite_brokers.heal()
        async with Producer("lite", namesrv=lite_brokers.namesrv, timeout=60.0) as producer:
            sent = set()
            for name in names:
                await producer.send(Message(topic, b"after", lite_topic=name))
                sent.add((name, b"after"))
        async with asyncio.timeout(90):
            while seen != sent:
                await asyncio.sleep(0.1)
