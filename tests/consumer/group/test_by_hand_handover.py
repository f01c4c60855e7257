"""Consumers that are read by hand: stops and handovers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from rmq_async import MessageExt, MessageQueue
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, reader, send, taken, until

Q0 = MessageQueue("T", "broker-a", 0)


def test_stop_waits_for_an_iterator_that_goes_on() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        consumer, seen = reader(s.namesrv), []
        await consumer.start()
        await send(s.namesrv, b"0", b"1", b"2")

        async def read() -> None:
            async for message in consumer:
                await asyncio.sleep(2.0)
                seen.append(message.body)

        task = asyncio.create_task(read())
        await asyncio.sleep(0.5)
        began = s.now
        await consumer.stop()
        assert 1.45 < s.now - began < 1.55
        await task
        assert seen == [b"0"]
        assert not consumer.done(MessageExt("T", b""))
        async with reader(s.namesrv) as consumer:
            assert await taken(consumer, 2) == [b"1", b"2"]

    Simulation(1, brokers=1, faults=None).run(main)


@pytest.mark.parametrize("how", ["body", "block", "received", "kept"])
def test_stop_does_not_wait_for_messages_that_nothing_will_settle(how: str) -> None:
    """Called in the body it begins the stop; at the end of the block, and after receive(), what is in hand is given up."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, b"0", b"1")
        began, kept = s.now, []
        async with reader(s.namesrv, start_from="earliest") as consumer:
            began = s.now
            if how == "body":
                async for message in consumer:
                    called = s.now
                    await consumer.stop()
                    assert s.now == called
                    assert message.body == b"0"
            elif how == "received":
                await consumer.receive(1)
                await consumer.stop()
            elif how == "kept":
                kept.append(aiter(consumer))
                await anext(kept[0])
            else:
                async for _ in consumer:
                    break
        assert s.now - began < 0.05
        async with reader(s.namesrv) as consumer:
            assert await taken(consumer, 1) == [b"1" if how == "body" else b"0"]
        if kept:
            with pytest.raises(StopAsyncIteration):
                await anext(kept[0])

    Simulation(1, brokers=1, faults=None).run(main)


def test_stop_gives_back_what_lies_below_settled_messages() -> None:
    """A message that nothing has in hand any more does not hold up the stop, and what was done behind it is not repeated."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        async with reader(s.namesrv) as consumer:
            await send(s.namesrv, b"0", b"1", b"2")
            batch = await consumer.receive(3, timeout=5.0)
            while len(batch) < 3:
                batch = [*batch, *await consumer.receive(3, timeout=5.0)]  # type: ignore[assignment]
            assert consumer.done(*batch[1:])
            began = s.now
        assert s.now - began < 0.05
        async with reader(s.namesrv) as consumer:
            again = await anext(aiter(consumer))
            assert (again.body, again.reconsume_times) == (b"0", 1)
            assert consumer.position(Q0) == 3

    Simulation(1, brokers=1, faults=None).run(main)


def test_handover_waits_for_messages_in_hand() -> None:
    """Those that are settled in time are not repeated, others are, and are not this member's any more."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)
        one = reader(s.namesrv, "one", handover_timeout=4.0)
        await one.start()
        await send(s.namesrv, *[b"%d" % number for number in range(4)])
        await until(lambda: one.stats().buffered == 4)
        batch = await one.receive(4)
        moving = [message for message in batch if message.queue.queue_id == 1]
        staying = [message for message in batch if message.queue.queue_id == 0]
        assert (len(moving), len(staying)) == (2, 2)
        seen = Seen()
        two = member("g", s.namesrv, "two", seen)
        starting = asyncio.create_task(two.start())
        await asyncio.sleep(2.0)
        assert one.done(moving[0])
        await starting
        await until(lambda: seen.bodies, 10.0)
        assert not one.done(moving[1])
        assert one.done(*staying)
        await two.wait_idle()
        assert seen.bodies == Counter([moving[1].body])
        await one.stop()
        await two.stop()

    Simulation(1, brokers=1, faults=None).run(main)


def test_queue_that_another_member_has_taken_makes_done_false() -> None:
    """A member that stands still for longer than its locks live finds them with another one."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen = Seen()
        answers: list[tuple[bool, bool]] = []

        async def serve() -> None:
            async with reader(s.namesrv, "stands still") as consumer:
                iterator = aiter(consumer)
                message = await anext(iterator)
                while consumer.assignment:
                    await asyncio.sleep(1.0)
                answers.append((consumer.done(message), await consumer.retry(message)))
                await asyncio.Event().wait()

        machine = s.machine("service")
        machine.run(serve)
        await asyncio.sleep(5.0)
        await send(s.namesrv, b"0")
        await asyncio.sleep(1.0)
        other = member("g", s.namesrv, "other", seen)
        machine.pause()
        await other.start()
        await until(lambda: seen.bodies, 300)
        await asyncio.sleep(60)
        machine.resume()
        await until(lambda: answers, 60)
        assert answers == [(False, False)]
        assert seen.bodies == Counter([b"0"])
        await other.stop()

    Simulation(5, brokers=1, faults=None).run(main)
