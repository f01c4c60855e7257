"""Consumers that pop, on the embedded broker: outcomes, stops, leases, batches, pauses, and members beside each other."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import Any

import pytest

from rmq_async import (
    Admin,
    Batch,
    ClientStateError,
    ConfigError,
    DeadLetter,
    Hook,
    Message,
    MessageExt,
    MessageQueue,
    Outcome,
    Producer,
    Retry,
    RetryLater,
    current_delivery,
)
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from ..group.support import Seen, create, send, until
from .support import popping

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("store", [{}, {"pop_store": "kv"}, {"pop_retry_v2": True}, {"pop_store": "kv", "pop_retry_v2": True}])
async def test_outcomes_of_popped_messages(store: dict[str, Any]) -> None:
    class Kept(Hook):
        def __init__(self) -> None:
            self.outcomes: list[Outcome | None] = []

        def after_consume(self, delivery: Any) -> None:
            self.outcomes.append(delivery.outcome)

    async def work(message: MessageExt) -> None:
        assert (message.topic, current_delivery().attempt) == ("T", message.reconsume_times + 1)
        match message.body:
            case b"later" if not message.reconsume_times:
                raise RetryLater(0.05)
            case b"raises" if not message.reconsume_times:
                raise RuntimeError("once")
            case b"hangs" if not message.reconsume_times:
                await asyncio.sleep(30)
            case b"dead":
                raise DeadLetter("on purpose")
            case b"key":
                raise KeyError("at once")
            case b"fails":
                raise RuntimeError("always")

    async with EmbeddedRocketMQ(pop_revive_delay=0.0, **store) as server:
        await create(server.namesrv)
        seen, hook = Seen(work), Kept()
        retry = Retry(limit=1, delays=[0.05])
        consumer = popping(server, seen, dead_letter_on=(KeyError,), timeout=0.1, retry=retry, hooks=[hook])
        async with consumer:
            bodies = [b"fine", b"later", b"raises", b"hangs", b"dead", b"key", b"fails"]
            await send(server.namesrv, *bodies)
            settled = await consumer.wait_settled(11, timeout=10)
            await consumer.commit()
            stats = consumer.stats()
            assert (stats.handled, stats.failed, stats.retried, stats.dead_lettered, stats.commits) == (4, 7, 4, 3, 7)
            assert (stats.buffered, stats.running, stats.rebalances) == (0, 0, 0)
            assert consumer.health().problems == ()
        assert seen.bodies == {b"fine": 1, b"later": 1, b"raises": 1, b"hangs": 1}
        assert sorted(attempt for body, attempt in seen.attempts if body == b"fails") == [1, 2]
        assert Counter(each.outcome for each in settled) == {Outcome.DONE: 4, Outcome.RETRIED: 4, Outcome.DEAD_LETTERED: 3}
        assert Counter(hook.outcomes) == Counter(each.outcome for each in settled)
        assert {message.body for message in server.dead_letters("g")} == {b"dead", b"key", b"fails"}
        assert [message.body for message in server.in_flight("g")] == []


async def test_limit_of_the_group_is_kept_at_arrival(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_group("g", retry_max_times=1)
        hangs = asyncio.Event()

        async def kills_its_member(message: MessageExt) -> None:
            hangs.set()
            await asyncio.sleep(60)

        await send(server.namesrv, b"poison")
        for attempt in range(2):  # neither is answered: as by a member that crashes
            consumer = popping(server, kills_its_member, f"m{attempt}")
            await consumer.start()
            await asyncio.wait_for(hangs.wait(), 5)
            hangs.clear()
            await consumer.stop(0.0)
        seen = Seen()
        async with popping(server, seen, "last"):
            await until(lambda: server.dead_letters("g"))
        assert seen.attempts == []
        assert "came for attempt 3, but only 2 are allowed" in caplog.text


async def test_stop_gives_back_what_has_not_begun() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        hanging, seen = asyncio.Event(), Seen()

        async def hang(message: MessageExt) -> None:
            hanging.set()
            await asyncio.sleep(60)

        first = popping(server, hang, "first", concurrency=8)
        async with first:
            await send(server.namesrv, *(b"%d" % number for number in range(30)))
            await asyncio.wait_for(hanging.wait(), 5)
            began = monotonic()
            await first.stop(1.1)
            assert 0.09 < monotonic() - began < 0.11
        async with popping(server, seen, "second"):
            await until(lambda: len(seen.bodies) == 30, 5)
        assert seen.twice == 0


async def test_stop_of_an_idle_member_does_not_wait() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        consumer = popping(server, Seen())
        await consumer.start()
        await asyncio.sleep(0.3)
        began = monotonic()
        await consumer.stop()
        assert monotonic() - began < 0.01  # though a broker holds a pop of 5 s
        seen = Seen()
        await send(server.namesrv, b"after")
        async with popping(server, seen):
            await until(lambda: seen.bodies)  # the pop that was held did not take it


async def test_stop_ends_held_pops_before_it_waits_for_handlers() -> None:
    """Else they would bring this member the messages that others could handle."""
    begun, over, seen = asyncio.Event(), asyncio.Event(), Seen()

    async def work(message: MessageExt) -> None:
        begun.set()
        await over.wait()

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        first = popping(server, work, "first")
        await first.start()
        await send(server.namesrv, b"0")
        await begun.wait()
        await asyncio.sleep(0.3)  # its next pops are held
        stopping = asyncio.ensure_future(first.stop())
        async with popping(server, seen, "second"):
            await send(server.namesrv, *(b"%d" % number for number in range(1, 9)))
            await until(lambda: len(seen.bodies) == 8)
        assert server.requests[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] == 0  # none was given back
        assert not stopping.done()
        over.set()
        await stopping


async def test_stop_waits_for_running_handlers_and_acknowledges() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        begun = asyncio.Event()

        async def work(message: MessageExt) -> None:
            begun.set()
            await asyncio.sleep(0.3)

        seen = Seen(work)
        async with popping(server, seen):
            await send(server.namesrv, b"1")
            await asyncio.wait_for(begun.wait(), 5)
        assert seen.bodies == {b"1": 1}
        assert server.in_flight("g") == []


async def test_stop_ends_a_commit_that_waits_for_a_silent_broker() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        handled = asyncio.Event()

        async def handle(_: MessageExt) -> None:
            server.stall()
            handled.set()

        consumer = popping(server, handle)
        await consumer.start()
        await send(server.namesrv, b"1")
        await handled.wait()
        commit = asyncio.ensure_future(consumer.commit())
        await asyncio.sleep(0.1)
        await consumer.stop(2.0)
        with pytest.raises(ClientStateError, match="had confirmed 1 acknowledgements"):
            await asyncio.wait_for(commit, 60)
        server.resume()


async def test_leases_of_long_calls_are_extended() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(2.5)

        seen = Seen(work)
        async with popping(server, seen, invisible_time=1.0) as consumer:
            await send(server.namesrv, b"1", b"2")
            await consumer.wait_settled(2, timeout=10)
            await consumer.wait_idle()
        assert (len(seen.attempts), seen.twice) == (2, 0)


@pytest.mark.parametrize("waits", [True, False])
async def test_message_whose_lease_ended_before_its_call_waits_for_its_next_delivery(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """``waits``: whether its lease may last no longer, so that it is given back without an attempt; else the broker is silent."""
    caplog.set_level(logging.DEBUG, "rmq_async.consumer.pop.pop_session")
    ids: dict[bytes, str] = {}

    async def work(message: MessageExt) -> None:
        ids[message.body] = message.msg_id
        if message.body == b"slow" and message.reconsume_times == 0:
            await asyncio.sleep(5.0)

    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        seen = Seen(work)
        async with popping(server, seen, invisible_time=2.0, max_lease=2.0 if waits else 3600.0, concurrency=1) as consumer:
            await send(server.namesrv, b"quick")  # after one that has ended the next but one is popped ahead
            await consumer.wait_settled(1)
            await send(server.namesrv, b"slow")
            await until(lambda: b"slow" in ids)
            await send(server.namesrv, b"ahead")
            await until(lambda: consumer.stats().buffered == 2)
            if not waits:
                server.stall("broker-a")
                await asyncio.sleep(4.5)
                server.resume("broker-a")
            await until(lambda: seen.bodies[b"ahead"])
        assert {(b"quick", 1), (b"slow", 1)} < {*seen.attempts}
        assert ((b"ahead", 1) in seen.attempts) is waits
    assert (f"the lease of message {ids[b'ahead']} ended before its call began" in caplog.messages) is not waits


async def test_members_share_one_queue() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(0.005)

        handlers = [Seen(work) for _ in range(5)]
        members = [popping(server, seen, f"m{number}", concurrency=2) for number, seen in enumerate(handlers)]
        await asyncio.gather(*(member.start() for member in members))
        await send(server.namesrv, *(b"%d" % number for number in range(200)))
        await until(lambda: sum(len(seen.bodies) for seen in handlers) == 200)
        await asyncio.gather(*(member.stop() for member in members))
        assert all(seen.bodies for seen in handlers)
        assert sum(sum(seen.bodies.values()) for seen in handlers) == 200


async def test_batches_of_popped_messages() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        sizes, seen = list[int](), Counter[bytes]()

        async def handle(batch: Batch) -> None:
            sizes.append(len(batch))
            for message in batch:
                if message.body == b"7" and not message.reconsume_times:
                    batch.mark_retry(message, 0.05)
                else:
                    seen[message.body] += 1

        async with popping(server, handle, batch_size=10) as consumer:
            await send(server.namesrv, *(b"%d" % number for number in range(40)))
            await until(lambda: len(seen) == 40)
            await consumer.wait_idle()
        assert set(seen.values()) == {1}
        assert max(sizes) <= 10


async def test_pauses_and_what_needs_queues() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        await create(server.namesrv)
        seen = Seen()
        async with popping(server, seen) as consumer:
            consumer.pause("T")
            await send(server.namesrv, b"1")
            await asyncio.sleep(0.2)
            assert seen.attempts == []
            consumer.resume("T")
            await until(lambda: seen.bodies, 5)
            queue = MessageQueue("T", "broker-a", 0)
            for call in (lambda: consumer.pause(queue), lambda: consumer.position(queue), lambda: consumer.resume("U")):
                with pytest.raises(ConfigError):
                    call()
            with pytest.raises(ConfigError, match=r"seek\(\) requires mode='pull'"):
                await consumer.seek(queue, 0)
            assert consumer.assignment == frozenset()
            lag = consumer.lag()
            assert (lag.messages, lag.retries, [each.queue_id for each in lag.by_queue]) == (0, 0, [-1])
            assert sum([await consumer.committed(MessageQueue("T", "broker-a", each)) or 0 for each in range(4)]) == 1


async def test_members_of_both_modes_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with popping(server, Seen(), "pulls", mode="pull"):
            with pytest.raises(ConfigError, match="give all members the same mode"):
                await popping(server, Seen(), "strict", on_conflict="raise").start()
            with caplog.at_level(logging.WARNING):
                async with popping(server, Seen(), "pops") as consumer:
                    (problem,) = [each for each in consumer.health().problems if each.code == "subscription_conflict"]
            assert "this member has mode='pop', another one has mode='pull'" in problem.text
            assert problem.text in caplog.text


async def test_topic_that_comes_later_is_popped() -> None:
    async with EmbeddedRocketMQ(auto_create_topics=False) as server:
        seen = Seen()
        async with popping(server, seen) as consumer:
            assert [each.code for each in consumer.health().problems] == ["group_unknown"]
            await create(server.namesrv)
            await send(server.namesrv, b"1")
            await until(lambda: seen.bodies)
            assert consumer.health().problems == ()


async def test_binary_headers_and_namespaces() -> None:
    async with EmbeddedRocketMQ(pop_revive_delay=0.0) as server:
        options: dict[str, Any] = {"namespace": "ns", "serialize_type": "rocketmq"}
        async with Admin(namesrv=server.namesrv, namespace="ns") as admin:
            await admin.create_topic("T", queues=2)

        async def work(message: MessageExt) -> None:
            assert (message.topic, message.queue.topic) == ("T", "T")
            if message.body == b"2" and not message.reconsume_times:
                raise RetryLater(0.05)
            if message.body == b"3":
                raise DeadLetter

        seen = Seen(work)
        async with popping(server, seen, **options) as consumer:
            async with Producer("p", namesrv=server.namesrv, namespace="ns") as producer:
                for body in (b"1", b"2", b"3"):
                    await producer.send(Message("T", body))
            await consumer.wait_settled(4)
            await consumer.commit()
        assert seen.bodies == {b"1": 1, b"2": 1}
        assert server.in_flight("ns%g") == []
        assert [message.body for message in server.dead_letters("ns%g")] == [b"3"]


async def test_brokers_share_the_credits_of_a_subscription() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv, queues=2)

        async def work(message: MessageExt) -> None:
            await asyncio.sleep(0.05)

        by_broker: Counter[str] = Counter()
        seen = Seen(work)

        async def handle(message: MessageExt) -> None:
            await seen(message)
            by_broker[message.queue.broker_name] += 1

        async with Producer("p", namesrv=server.namesrv) as producer:
            queues = [queue for queue in await producer.fetch_publish_queues("T") if queue.broker_name == "broker-b"]
            await producer.send_batch([Message("T", b"%d" % number) for number in range(60)], queue=queues[0])
        async with popping(server, handle, concurrency=2, pull_size=8):
            await until(lambda: by_broker["broker-b"] == 60, 4)  # while the other one holds a pop of 5 s
