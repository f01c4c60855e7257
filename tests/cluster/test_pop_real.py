"""Members that pop, on a real broker: outcomes, more members than queues, stops, leases, and what is refused."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from time import monotonic, time
from typing import Any

import pytest

from rmq_async import (
    Admin,
    ConfigError,
    Consumer,
    DeadLetter,
    Hook,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    RetryLater,
    machine,
)
from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.bodies import SetMessageRequestModeRequestBody, encode_body
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RequestCode

from ..client.support import until
from .dead_letters import readable_dead_letters


async def new_topic(cluster: RealCluster, queues: int = 4) -> str:
    topic = f"Pop_{uuid.uuid4().hex}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


async def send(cluster: RealCluster, topic: str, *bodies: bytes, **options: Any) -> None:
    async with Producer("p", namesrv=cluster.namesrv) as producer:
        for start in range(0, len(bodies), 100):
            await producer.send_batch([Message(topic, body, **options) for body in bodies[start : start + 100]])


def member(cluster: RealCluster, topic: str, handler: Any, name: str = "one", **options: Any) -> Consumer:
    subscribing = {
        key: options.pop(key) for key in ("tags", "sql", "timeout", "dead_letter_on", "batch_size") if key in options
    }
    options = {"start_from": "earliest", "mode": "pop", **options}
    consumer = Consumer(f"G_{topic}", namesrv=cluster.namesrv, instance_name=name, **options)
    consumer.subscribe(topic, handler, **subscribing)
    return consumer


async def test_pop_every_outcome_of_a_message(feature_cluster: RealCluster) -> None:
    topic, seen = await new_topic(feature_cluster), Counter[bytes]()
    again: dict[bytes, float] = {}

    async def handler(message: MessageExt) -> None:
        seen[message.body] += 1
        if message.reconsume_times:
            again[message.body] = monotonic()
            assert message.topic == topic
            return
        match message.body:
            case b"later":
                raise RetryLater(0.1)
            case b"dead":
                raise DeadLetter("on purpose")
            case b"key":
                raise KeyError(message.body)

    async with member(feature_cluster, topic, handler, dead_letter_on=(KeyError,), timeout=0.5) as consumer:
        began = monotonic()
        await send(feature_cluster, topic, b"fine", b"later", b"dead", b"key", tags="a")
        await consumer.wait_settled(5, timeout=15)
        assert 2.0 < again[b"later"] - began < 8.0  # a broker looks each second or so, 2 s after the end of the lease
        await consumer.wait_idle(timeout=5)
        assert seen == {b"fine": 1, b"later": 2, b"dead": 1, b"key": 1}
        stats = consumer.stats()
        assert (stats.handled, stats.failed, stats.retried, stats.dead_lettered, stats.commits) == (2, 3, 1, 2, 4)
        assert consumer.health().problems == ()
    async with Admin(namesrv=feature_cluster.namesrv, request_timeout=30.0) as admin:
        assert {message.body for message in await readable_dead_letters(admin, f"G_{topic}", 2)} == {b"dead", b"key"}


async def test_pop_members_outnumber_queues(feature_cluster: RealCluster) -> None:
    topic, seen = await new_topic(feature_cluster, queues=1), Counter[bytes]()
    by_member: Counter[str] = Counter()

    def handler(name: str) -> Any:
        async def handle(message: MessageExt) -> None:
            await asyncio.sleep(0.01)
            seen[message.body] += 1
            by_member[name] += 1

        return handle

    members = [member(feature_cluster, topic, handler(name), name, concurrency=4) for name in "abcd"]
    for each in members:
        await each.start()
    await send(feature_cluster, topic, *(b"%d" % number for number in range(400)))
    await until(lambda: len(seen) == 400, 20)
    await asyncio.gather(*(each.wait_idle() for each in members))
    for each in members:
        await each.stop()
    assert set(seen.values()) == {1}
    assert len(by_member) == 4
    assert members[0].assignment == frozenset()


async def test_pop_stop_gives_back_what_has_not_begun(feature_cluster: RealCluster) -> None:
    topic, seen, begun = await new_topic(feature_cluster), Counter[bytes](), asyncio.Event()

    async def hang(message: MessageExt) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1

    first = member(feature_cluster, topic, hang, "first", concurrency=2, pull_size=8)
    await first.start()
    await send(feature_cluster, topic, *(b"%d" % number for number in range(40)))
    await asyncio.wait_for(begun.wait(), 10)
    began = monotonic()
    await first.stop(timeout=1.2)
    assert monotonic() - began < 3
    async with member(feature_cluster, topic, handle, "second"):
        await until(lambda: len(seen) == 40, 15)  # none waits for its lease of 60 s
    assert set(seen.values()) == {1}


async def test_pop_lease_is_extended_while_a_handler_runs(feature_cluster: RealCluster) -> None:
    topic, seen = await new_topic(feature_cluster), Counter[bytes]()

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1
        await asyncio.sleep(6.0 if message.body == b"slow" else 0.0)

    async with member(feature_cluster, topic, handle, invisible_time=1.5) as consumer:
        await send(feature_cluster, topic, b"slow", b"fast")
        settled = await consumer.wait_settled(2, timeout=15)
        assert {each.outcome for each in settled} == {Outcome.DONE}
        await consumer.wait_idle()
    assert seen == {b"slow": 1, b"fast": 1}


async def test_pop_filters_and_batches(feature_cluster: RealCluster) -> None:
    topic, sizes, seen = await new_topic(feature_cluster), list[int](), Counter[bytes]()

    async def handle(batch: Any) -> None:
        sizes.append(len(batch))
        seen.update(message.body for message in batch)
        if batch[0].body == b"sql" and not batch[0].reconsume_times:
            batch.mark_retry(batch[0], 0.1)

    async with member(feature_cluster, topic, handle, sql="TAGS = 'b' AND number > 3", batch_size=8) as consumer:
        await send(feature_cluster, topic, b"no", tags="b", properties={"number": "2"})
        await send(feature_cluster, topic, b"nor this", tags="a", properties={"number": "9"})
        await send(feature_cluster, topic, b"sql", tags="b", properties={"number": "9"})
        await consumer.wait_settled(2, timeout=15)
    assert seen == {b"sql": 2}
    seen.clear()

    async def one(message: MessageExt) -> None:
        seen[message.body] += 1

    other = Consumer(f"H_{topic}", namesrv=feature_cluster.namesrv, mode="pop", start_from="earliest")
    other.subscribe(topic, one, tags="a || c")
    async with other:
        await until(lambda: seen == {b"nor this": 1})


async def test_pop_latest_begins_at_the_end(feature_cluster: RealCluster) -> None:
    topic, seen = await new_topic(feature_cluster), Counter[bytes]()

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1

    await send(feature_cluster, topic, *(b"old %d" % number for number in range(10)))
    async with member(feature_cluster, topic, handle, start_from="latest") as consumer:
        await send(feature_cluster, topic, b"new")
        await consumer.wait_settled(1)
        consumer.pause(topic)
        await send(feature_cluster, topic, b"while paused")
        await asyncio.sleep(0.3)
        assert seen == {b"new": 1}
        consumer.resume()
        await consumer.wait_settled(1, timeout=15)
        await consumer.commit()
        with pytest.raises(ConfigError, match=r"seek\(\) requires mode='pull'"):
            await consumer.seek(MessageQueue(topic, "broker-a", 0), 0)
    assert seen == {b"new": 1, b"while paused": 1}


async def test_pop_modes_that_disagree_are_named(feature_cluster: RealCluster, caplog: pytest.LogCaptureFixture) -> None:
    topic = await new_topic(feature_cluster)

    async def handle(message: MessageExt) -> None:
        """Accepts every message."""

    async with member(feature_cluster, topic, handle, "pulls", mode="pull"):
        instance = await ClientInstance.acquire(ClientConfig(namesrv=feature_cluster.namesrv, instance_name="operator"))
        try:
            body = encode_body(SetMessageRequestModeRequestBody(topic=topic, consumer_group=f"G_{topic}"))
            command = RemotingCommand(code=RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
            broker = next(iter((await instance.routes.get(topic, 3)).addresses))
            response, _ = await instance.ask_broker(broker, topic, command, 3)
            assert response.code == 0
        finally:
            await instance.release()
        with pytest.raises(ConfigError, match="same mode"):
            await member(feature_cluster, topic, handle, "strict", on_conflict="raise").start()
        with caplog.at_level(logging.WARNING):
            async with member(feature_cluster, topic, handle, "pops") as popping:
                (problem,) = [each for each in popping.health().problems if each.code == "subscription_conflict"]
                assert "this member has mode='pop', another one has mode='pull'" in problem.text
        assert f"group G_{topic} pulls topic {topic} (setConsumeMode)" in caplog.text


@pytest.mark.parametrize("years", [-1, 1])
async def test_pop_clock_of_a_client_does_not_matter(
    feature_cluster: RealCluster, years: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(Hook):
        def __init__(self) -> None:
            self.codes = Counter[int]()

        def before_request(self, address: str, command: Any) -> None:
            self.codes[command.code] += 1

    monkeypatch.setattr(machine, "time", lambda: time() + years * 365 * 86_400)
    topic, seen, hook = await new_topic(feature_cluster), Counter[bytes](), Counting()

    async def handle(message: MessageExt) -> None:
        seen[message.body] += 1
        await asyncio.sleep(1.6 if message.body == b"slow" else 0.0)

    async with member(feature_cluster, topic, handle, invisible_time=1.0, hooks=[hook]) as consumer:
        await send(feature_cluster, topic, b"slow")
        for number in range(5):
            began = monotonic()
            await send(feature_cluster, topic, b"%d" % number)
            await until(lambda number=number: seen[b"%d" % number])
            assert monotonic() - began < 2.0  # held pops are answered when a message comes
        await consumer.wait_idle(timeout=5)
    assert set(seen.values()) == {1}
    assert hook.codes[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] >= 1
    assert hook.codes[RequestCode.POP_MESSAGE] < 40


async def test_pop_that_is_held_for_a_member_that_is_gone_takes_nothing(feature_cluster: RealCluster) -> None:
    topic, seen = await new_topic(feature_cluster), dict[bytes, int]()

    async def handle(message: MessageExt) -> None:
        seen[message.body] = message.reconsume_times

    first = member(feature_cluster, topic, handle, "first")
    await first.start()
    await asyncio.sleep(0.5)  # the broker holds a pop of 5 s now
    began = monotonic()
    await first.stop()
    assert monotonic() - began < 1.0
    await send(feature_cluster, topic, *(b"%d" % number for number in range(8)))
    async with member(feature_cluster, topic, handle, "second"):
        await until(lambda: len(seen) == 8, 4)  # none waits for a lease of 60 s
    assert set(seen.values()) == {0}


async def test_pop_takes_the_highest_priority_first(feature_cluster: RealCluster) -> None:
    """The number of a queue is the priority of its messages."""
    topic, order = f"Pop_{uuid.uuid4().hex}", list[bytes]()
    async with Admin(namesrv=feature_cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=4, attributes={"message.type": "PRIORITY"})

    async def handle(message: MessageExt) -> None:
        order.append(b"%d" % message.queue.queue_id + b" " + message.body)
        await asyncio.sleep(0.03)

    async with Producer("p", namesrv=feature_cluster.namesrv) as producer:
        queues = {queue.queue_id: queue for queue in await producer.fetch_publish_queues(topic)}
        for number in range(40):
            await producer.send(Message(topic, b"early"), queue=queues[number % 4])
        async with member(feature_cluster, topic, handle, concurrency=1) as consumer:
            await consumer.wait_settled(22)
            await producer.send(Message(topic, b"urgent"), queue=queues[3])
            await consumer.wait_settled(19, timeout=10)
    early = [each for each in order if each.endswith(b"early")]
    assert early == sorted(early, reverse=True)
    assert order.index(b"3 urgent") < 35


async def test_pop_refuses_an_old_broker(old_cluster: RealCluster) -> None:
    topic = await new_topic(old_cluster)

    async def handle(message: MessageExt) -> None:
        """Never called."""

    consumer = member(old_cluster, topic, handle)
    with pytest.raises(ConfigError, match=r"is RocketMQ 4\.9\.7; mode='pop' requires 5\.3\.2 or later"):
        await consumer.start()
    async with Admin(namesrv=old_cluster.namesrv, request_timeout=30.0) as admin:
        assert f"G_{topic}" not in await admin.groups()  # nothing was begun
