"""Queues that lose messages which were read, and give their offsets out again: a reader does not skip what is stored there then."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from rmq_async import Admin, Message, MessageQueue, OffsetRangeError, Producer, PullConsumer, RocketMQError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import each

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)


async def fill(producer: Producer, count: int, body: bytes = b"x") -> None:
    for _ in range(count):
        await producer.send(Message("T", body), queue=Q0)


@pytest.mark.parametrize("seed", [3, 4])
def test_power_loss_under_a_reader_that_follows(seed: int) -> None:
    """The queues are filled past the reader's position before it is connected again."""

    async def main(s: Simulation) -> None:
        got: dict[int, list[bytes]] = {}
        async with Admin(namesrv=s.namesrv) as admin:
            await admin.create_topic("T", queues=1)
        async with (
            Producer("g", namesrv=s.namesrv, timeout=60.0, retries=100) as producer,
            PullConsumer("c", namesrv=s.namesrv) as consumer,
        ):
            await fill(producer, 1)
            reading = asyncio.create_task(
                each(consumer.read("T", end=None), lambda item: got.setdefault(item.queue_offset, []).append(item.body))
            )

            async def send(number: int) -> None:
                with suppress(RocketMQError):
                    await producer.send(Message("T", b"%d" % number), queue=Q0)

            sends = []
            for number in range(300):
                sends.append(asyncio.create_task(send(number)))
                await asyncio.sleep(0.005)
                if number == 100:
                    s.machine("broker-a").power_loss()
                    before = len(got)
            await asyncio.sleep(3)
            s.machine("broker-a").restart()
            await asyncio.gather(*sends)
            with pytest.raises(OffsetRangeError, match=r"has lost messages that were read .* at offset \d+ '"):
                await asyncio.wait_for(reading, 30)
            async with PullConsumer("all", namesrv=s.namesrv) as other:
                stored = [message.body async for message in other.read("T")]
        assert before > 50
        assert len(stored) > max(got) + 100, "the queue was not filled past the reader"
        assert all(len(bodies) == 1 for bodies in got.values())

    Simulation(seed, brokers=1, faults=None).run(main)


def test_patience_above_the_end_begins_with_the_first_answer() -> None:
    """The reader has been idle for longer than that before."""

    async def main(s: Simulation) -> None:
        async with Producer("g", namesrv=s.namesrv) as producer, PullConsumer("c", namesrv=s.namesrv) as consumer:
            await fill(producer, 8)
            got: list[int] = []
            reading = asyncio.create_task(
                each(consumer.read("T", start={Q0: 0}, end=None), lambda item: got.append(item.queue_offset))
            )
            await asyncio.sleep(5)
            assert got == [*range(8)]
            s.machine("broker-a").truncate(3)
            await fill(producer, 1)
            begin = s.now
            with pytest.raises(OffsetRangeError, match=r"offset 8 of .* is outside 0\.\.6; start a new reading"):
                await reading
            assert 0.9 < s.now - begin < 1.5

    Simulation(1, brokers=1, faults=None).run(main)


async def test_queue_filled_past_the_reader_within_the_patience() -> None:
    async with (
        EmbeddedRocketMQ() as server,
        Producer("g", namesrv=server.namesrv) as producer,
        PullConsumer("c", namesrv=server.namesrv) as consumer,
    ):
        await producer.send(Message("T", b"-"), queue=None)
        server.truncate("broker-a", 1)
        await fill(producer, 8, b"old")
        got: list[int] = []
        reading = asyncio.create_task(
            each(consumer.read("T", start={Q0: 0}, end=None), lambda item: got.append(item.queue_offset))
        )
        while len(got) < 8:
            await asyncio.sleep(0.01)
        server.truncate("broker-a", 3)
        await fill(producer, 6, b"new")
        with pytest.raises(OffsetRangeError, match="has lost messages that were read") as caught:
            await asyncio.wait_for(reading, 5)
        assert (caught.value.min_offset, caught.value.max_offset) == (0, 11)
        assert got == [*range(8)]


@pytest.mark.parametrize("deleted", [False, True])
async def test_new_connection_to_a_queue_that_kept_all_costs_one_pull(deleted: bool) -> None:
    """Also where the message that was read last has been deleted since."""
    async with (
        EmbeddedRocketMQ() as server,
        Producer("g", namesrv=server.namesrv) as producer,
        PullConsumer("c", namesrv=server.namesrv) as consumer,
    ):
        await producer.send(Message("T", b"-"))
        server.truncate("broker-a", 1)
        await fill(producer, 3)
        got: list[int] = []
        async for message in consumer.read("T", start={Q0: 0}, end=None):
            got.append(message.queue_offset)
            if message.queue_offset == 2:
                if deleted:
                    server.expire(Q0, 3)
                server.drop_connections()
                await asyncio.sleep(0.05)
                await fill(producer, 1)
            elif message.queue_offset == 3:
                break
        assert got == [0, 1, 2, 3]
        assert server.requests[11] <= 6
