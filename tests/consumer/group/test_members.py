"""Members that share topics, join, leave, crash and meet trouble, in simulated time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from rmq_async import Admin, Consumer, Delivery, Message, MessageExt, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.results import PullResult
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, serving, until

pytestmark = pytest.mark.virtual_time


async def test_members_share_the_queues_of_a_topic() -> None:
    async with EmbeddedRocketMQ(brokers=2) as server:
        await create(server.namesrv)
        consumers = [member("g", server.namesrv, name, Seen()) for name in ("one", "two", "three")]
        for consumer in consumers:
            await consumer.start()
        await until(lambda: sum(len(consumer.assignment) for consumer in consumers) == 8 + 2)
        shares = [consumer.assignment for consumer in consumers]
        assert len(frozenset().union(*shares)) == 10
        topics = [sum(queue.topic == "T" for queue in share) for share in shares]
        assert topics == sorted(topics, reverse=True) or sorted(topics) == [2, 3, 3]
        await consumers[0].stop()
        await until(lambda: sum(len(consumer.assignment) for consumer in consumers) == 10)
        for consumer in consumers:
            await consumer.stop()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.deep) for seed in (1, 2))])
def test_members_that_come_and_go_handle_each_message_once(seed: int) -> None:
    """A member joins or stops every 3 s; handlers take up to 2 s."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=8)
        chance = s.generator("members")  # type: ignore[attr-defined]
        seen = Seen(lambda message: asyncio.sleep(chance.random() * 2))
        live = [member("g", s.namesrv, f"first-{number}", seen, start_from="earliest") for number in range(3)]
        for each in live:
            await each.start()
        sent = 0

        async def produce() -> None:
            nonlocal sent
            async with Producer("p", namesrv=s.namesrv) as producer:
                while s.now < 90:
                    await producer.send(Message("T", b"%d" % sent))
                    sent += 1
                    await asyncio.sleep(0.1)

        producing = asyncio.create_task(produce())
        number = 0
        while s.now < 90:
            await asyncio.sleep(3)
            if len(live) > 1 and chance.random() < 0.5:
                await live.pop(chance.randrange(len(live))).stop()
            else:
                number += 1
                live.append(member("g", s.namesrv, f"later-{number}", seen, start_from="earliest"))
                await live[-1].start()
        await producing
        await asyncio.sleep(30)
        for each in live:
            await each.stop()
        assert len(seen.bodies) == sent > 500
        assert seen.twice == 0

    Simulation(seed, faults=None).run(main)


def test_member_that_crashes_is_replaced() -> None:
    """Its queues are taken over; what it had not committed is handled again, and nothing is lost."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()

        async def serve() -> None:
            async with member("g", s.namesrv, "crashes", seen, start_from="earliest"):
                await asyncio.Event().wait()

        machine = s.machine("service")
        machine.run(serve)
        await asyncio.sleep(5)
        other = member("g", s.namesrv, "stays", seen)
        await other.start()
        await send(s.namesrv, *[b"%d" % number for number in range(40)])
        await asyncio.sleep(0.5)  # handled, and not committed yet
        machine.crash()
        await send(s.namesrv, *[b"%d" % number for number in range(40, 80)])
        crashed_at = s.now
        await until(lambda: len(other.assignment) == 8 + 2, 100.0)
        assert s.now - crashed_at < 15
        await asyncio.sleep(5)
        assert len(seen.bodies) == 80
        assert seen.twice <= 40
        await other.stop()

    Simulation(5, brokers=2, faults=None).run(main)


def test_queues_of_a_crashed_member_are_handed_on_at_once() -> None:
    """The member that took them over freed the locks of the crashed one, which would have lived for a minute."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()

        machine = serving(s, "crashes", seen)
        await asyncio.sleep(5)
        heir, next_owner = member("g", s.namesrv, "heir", seen), member("g", s.namesrv, "next", seen)
        await heir.start()
        await asyncio.sleep(2)
        machine.crash()
        await until(lambda: len(heir.assignment) == 8 + 2, 100.0)
        await next_owner.start()
        await heir.stop()
        stopped_at = s.now
        await until(lambda: len(next_owner.assignment) == 8 + 2, 100.0)
        assert s.now - stopped_at < 1.1
        await next_owner.stop()

    Simulation(5, brokers=2, faults=None).run(main)


def test_queues_of_a_crashed_member_are_handed_on_by_one_that_joined_later() -> None:
    """It has not seen the crashed one in the list; the member that stayed frees the locks for it."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()

        machine = serving(s, "crashes", seen)
        await asyncio.sleep(5)
        stays, later = member("g", s.namesrv, "a stays", seen), member("g", s.namesrv, "b joins", seen)
        await stays.start()
        await asyncio.sleep(15)  # each has its share
        machine.crash()
        await asyncio.sleep(2)
        await later.start()
        await until(lambda: len(stays.assignment) + len(later.assignment) == 8 + 2 and later.assignment, 100.0)
        await later.stop()
        stopped_at = s.now
        await until(lambda: len(stays.assignment) == 8 + 2, 100.0)
        assert s.now - stopped_at < 1.1
        await stays.stop()

    Simulation(5, brokers=2, faults=None).run(main)


def test_broker_that_restarts_under_a_consumer() -> None:
    """Consumption goes on; the broker remembers offsets that are up to 5 s old, so a few messages come twice."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()
        consumer = member("g", s.namesrv, "one", seen)
        await consumer.start()
        for _ in range(3):
            await send(s.namesrv, *[b"%d" % len(seen.bodies)])
            await asyncio.sleep(10)
            s.machine("broker-a").crash()
            await asyncio.sleep(20)
            assert consumer.health().problems
            s.machine("broker-a").restart()
            await asyncio.sleep(30)
            before = len(seen.attempts)
            await send(s.namesrv, b"after %d" % before)
            await until(lambda before=before: b"after %d" % before in seen.bodies, 30.0)
        assert consumer.health().problems == ()
        await consumer.stop()

    Simulation(6, brokers=1, faults=None).run(main)


def test_group_position_is_stored_before_start_returns() -> None:
    """What is sent after ``start()`` is delivered, also when the member that started crashes at once."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        await send(s.namesrv, b"old")

        async def serve() -> None:
            async with member("g", s.namesrv, "crashes", Seen(lambda message: asyncio.sleep(1000))):
                await asyncio.Event().wait()

        machine = s.machine("service")
        machine.run(serve)
        await asyncio.sleep(2)
        machine.crash()
        await send(s.namesrv, b"new")
        seen = Seen()
        async with member("g", s.namesrv, "later", seen):
            await until(lambda: seen.bodies, 60.0)
            await asyncio.sleep(5)
        assert seen.bodies == {b"new": 1}

    Simulation(7, faults=None).run(main)


def test_queues_added_to_a_topic_are_read_from_their_first_message() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen()
        async with member("g", s.namesrv, "one", seen):
            async with Admin(namesrv=s.namesrv) as admin:
                await admin.create_topic("T", queues=4)
            await asyncio.sleep(0.1)
            await send(s.namesrv, *[b"%d" % number for number in range(16)])
            await until(lambda: len(seen.bodies) == 16, 90.0)

    Simulation(8, faults=None).run(main)


def test_start_from_earliest_and_committed_offsets() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        await send(s.namesrv, b"1", b"2")
        seen = Seen()
        async with member("g", s.namesrv, "one", seen, start_from="earliest"):
            await until(lambda: len(seen.bodies) == 2)
        async with member("g", s.namesrv, "one", seen, start_from="earliest"):
            await asyncio.sleep(20)
        assert seen.bodies == {b"1": 1, b"2": 1}

    Simulation(9, faults=None).run(main)


def test_hung_handler_holds_its_own_queue_only() -> None:
    """Up to ``max_span`` of its queue is handled beside it; health names it; at its timeout the message is given back."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        seen = Seen()
        hung: list[float] = []

        async def handler(message: MessageExt) -> None:
            if message.body == b"hang" and not hung:
                hung.append(s.now)
                await asyncio.sleep(10_000)
            await seen(message)

        consumer = Consumer("g", namesrv=s.namesrv, max_span=50, stuck_after=30.0)
        consumer.subscribe("T", handler, timeout=300.0)
        async with consumer:
            await send(s.namesrv, b"hang")
            await until(lambda: hung)
            await send(s.namesrv, *[b"%d" % number for number in range(400)])
            await asyncio.sleep(60)
            assert len(seen.bodies) == 200 + 50 - 1
            problems = consumer.health().problems
            assert [problem.code for problem in problems] == ["handler_stuck"]
            assert consumer.health().live
            await asyncio.sleep(300)
            assert len(seen.bodies) == 401
            assert consumer.health().problems == ()
        assert seen.twice == 0

    Simulation(10, brokers=1, faults=None).run(main)


def test_handled_messages_are_not_kept() -> None:
    """With large bodies, and many queues that wait for messages or for room, that would be most of the memory."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen()
        async with member("g", s.namesrv, "one", seen):
            await send(s.namesrv, *[b"%d" % number for number in range(8)])
            await until(lambda: len(seen.bodies) == 8)
            await asyncio.sleep(1)
            gc.collect()
            kept = gc.get_objects()
            assert not [each for each in kept if isinstance(each, PullResult) and each.messages]
            assert not [each for each in kept if isinstance(each, Delivery)]

    Simulation(10, faults=None).run(main)


def test_slow_subscription_does_not_hold_another_one() -> None:
    """The buffer is full of messages whose handlers are slow; the other topic still gets its turn."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, "Slow")
        await create(s.namesrv, "T")
        seen = Seen()
        consumer = Consumer("g", namesrv=s.namesrv, buffered_limit=100, start_from="earliest")
        consumer.subscribe("Slow", Seen(lambda message: asyncio.sleep(60)), concurrency=2)
        consumer.subscribe("T", seen)
        await send(s.namesrv, *[b"%d" % number for number in range(500)], topic="Slow")
        async with consumer:
            await asyncio.sleep(5)
            assert consumer.stats().buffered <= 100 + 8
            await send(s.namesrv, *[b"%d" % number for number in range(500)])
            await until(lambda: len(seen.bodies) == 500, 60.0)
            await consumer.stop(timeout=0)

    Simulation(11, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("tags", ["a", "a || b", "*"])
async def test_tags_of_a_subscription(tags: str) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", seen, tags=tags)
        async with consumer:
            for tag in "abc":
                await send(server.namesrv, tag.encode(), tags=tag)
            await consumer.wait_idle()
        expected = {b"a"} if tags == "a" else {b"a", b"b"} if "b" in tags else {b"a", b"b", b"c"}
        assert seen.bodies.keys() == expected
