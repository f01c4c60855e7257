"""Brokers that take no messages back, on real brokers of both versions: drained by ``brokerPermission=4``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from time import monotonic

import pytest

from rmq_async import Admin, Batch, Consumer, DeadLetter, Message, MessageExt, MessageQueue, Producer, PullConsumer, Retry
from rmq_async.testing.cluster import OLD_VERSION, RealCluster

from .conftest import started
from .test_draining import drained, new


@pytest.fixture(scope="module")
def two_old_brokers() -> Iterator[RealCluster]:
    yield from started(RealCluster(version=OLD_VERSION, brokers=2))


@pytest.fixture(params=["two_brokers", "two_old_brokers"], ids=["5.5.0", "4.9.7"])
def two(request: pytest.FixtureRequest) -> RealCluster:
    found: RealCluster = request.getfixturevalue(request.param)
    return found


async def until_read(admin: Admin, group: str, broker: str) -> None:
    """Waits until the group has read all of a broker, its retry topic there included."""
    async with asyncio.timeout(20):
        while True:
            lag = await admin.group_lag(group)
            left = {**lag.queues, **lag.retry_queues}
            if not any(each.messages for queue, each in left.items() if queue.broker_name == broker):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("shape", ["single", "batch", "key"])
async def test_drained_broker_stops_no_messages_and_is_read_to_its_end(two: RealCluster, shape: str) -> None:
    """Twice as many messages of it fail as there are slots; half of them for good."""
    broker, namesrv, topic, group = two.brokers[0], two.namesrv, new("Drained"), new("CG")
    calls: list[tuple[bytes, int, str, str]] = []
    done: Counter[bytes] = Counter()

    def count(message: MessageExt) -> None:
        calls.append((message.body, message.reconsume_times + 1, message.queue.broker_name, message.msg_id))
        if message.body.startswith(b"dead"):
            raise DeadLetter("as its body says")
        if message.body.startswith(b"bad") and not message.reconsume_times and shape != "key":
            raise ValueError("as its body says")
        done[message.body] += 1

    async def single(message: MessageExt) -> None:
        count(message)

    async def batch(messages: Batch) -> None:
        for message in messages:
            try:
                count(message)
            except DeadLetter:
                messages.mark_dead_letter(message)
            except ValueError:
                messages.mark_retry(message)

    async with (
        Admin(namesrv=namesrv, request_timeout=10.0) as admin,
        Producer(new("PG"), namesrv=namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        a, b = MessageQueue(topic, "broker-a", 0), MessageQueue(topic, "broker-b", 0)
        for number in range(8):
            for kind in ("bad", "dead"):
                body = f"{kind}{number}"
                await producer.send(Message(topic, body.encode(), sharding_key=body), queue=a)
        for number in range(100):
            await producer.send(Message(topic, b"good%d" % number, sharding_key=str(number)), queue=b)
        consumer = Consumer(
            group,
            namesrv=namesrv,
            instance_name=new("I"),
            start_from="earliest",
            concurrency=8,
            retry=Retry(limit=3, delays=(1,)),
        )
        if shape == "batch":
            consumer.subscribe(topic, batch, batch_size=4)
        else:
            consumer.subscribe(topic, single, order="key" if shape == "key" else None)
        async with drained(admin, broker.address), consumer:
            async with asyncio.timeout(20):
                while len(done) < 108:
                    await asyncio.sleep(0.05)
            await until_read(admin, group, broker.name)
            stats = consumer.stats()
            assert (stats.dead_lettered, stats.unsure) == (8, 0)
            assert [(each.code, each.broker) for each in consumer.health().problems] == [("not_taken_back", "broker-a")]
        assert {body for body, _, _, _ in calls} == {*done, *[b"dead%d" % number for number in range(8)]}
        assert set(done.values()) == {1}
        again = [call for call in calls if call[1] > 1]
        assert {call[2] for call in again} == (set() if shape == "key" else {"broker-b"})
        assert len({(body, msg_id) for body, _, _, msg_id in calls}) == 116, "copies keep the id"
        async with PullConsumer(new("CG"), namesrv=namesrv, instance_name=new("I")) as reader:
            dead = [message async for message in reader.read(f"%DLQ%{group}")]
        assert sorted(message.body for message in dead) == sorted(b"dead%d" % number for number in range(8))
        assert {message.queue.broker_name for message in dead} == {"broker-b"}


async def test_by_hand_no_call_waits_for_a_drained_broker(two: RealCluster) -> None:
    broker, namesrv, topic = two.brokers[0], two.namesrv, new("Drained")
    async with (
        Admin(namesrv=namesrv, request_timeout=10.0) as admin,
        Producer(new("PG"), namesrv=namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        for body in (b"0", b"1"):
            await producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
        options = {"namesrv": namesrv, "instance_name": new("I"), "topics": topic, "start_from": "earliest"}
        async with drained(admin, broker.address), Consumer(new("CG"), **options) as consumer:
            messages: list[MessageExt] = []
            while len(messages) < 2:
                messages += await consumer.receive(2)
            began = monotonic()
            assert await consumer.retry(messages[0], 1)
            assert await consumer.dead_letter(messages[1])
            assert monotonic() - began < 2
            (again,) = await consumer.receive(1, timeout=15)
            assert (again.body, again.reconsume_times, again.msg_id) == (b"0", 1, messages[0].msg_id)
            assert again.queue.broker_name == "broker-b"
            assert consumer.done(again)
