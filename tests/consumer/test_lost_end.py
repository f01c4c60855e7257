"""Queues that lose messages which were read, and give their offsets out again: a reader does not skip what is stored there then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from rmq_async import Admin, ConfigError, Message, MessageQueue, OffsetRangeError, Producer, PullConsumer, RocketMQError
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
            with pytest.raises(
                OffsetRangeError, match=r"has lost messages that were read.* may have other messages from \d+ on"
            ):
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
            with pytest.raises(OffsetRangeError, match=r"was read up to offset 8, and may have other messages from \d on"):
                await reading
            assert 0.95 < s.now - begin < 1.05

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


def lose(server: EmbeddedRocketMQ, count: int) -> None:
    """A replica that lacks the newest messages becomes the master."""
    server.truncate("broker-a", count)
    server.drop_connections()


async def committed_at(server: EmbeddedRocketMQ, offset: int) -> None:
    async with Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=1)
    async with (
        Producer("before", namesrv=server.namesrv, instance_name="before") as producer,
        PullConsumer("c", namesrv=server.namesrv, instance_name="before") as consumer,
    ):
        await fill(producer, max(offset - 10, 0), b"old")
        await asyncio.sleep(30)  # more than brokers' clocks may differ by
        await fill(producer, min(offset, 10), b"late")
        await consumer.commit(Q0, offset)


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize(("above_end", "begins"), [("end", 20), ("earliest", 0)])
async def test_group_above_the_end(above_end: Any, begins: int, follows: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Messages that are stored while the reading looks are read, also where the queue has the group's offset again then."""
    async with EmbeddedRocketMQ() as server, Producer("g", namesrv=server.namesrv) as producer:
        await committed_at(server, 30)
        server.truncate("broker-a", 10)
        async with PullConsumer("c", namesrv=server.namesrv) as consumer:
            end = None if follows else "latest"
            reading = consumer.read("T", start="committed", end=end, above_end=above_end)
            got: list[tuple[int, bytes]] = []
            task = asyncio.create_task(each(reading, lambda item: got.append((item.queue_offset, item.body))))
            await asyncio.sleep(0.5)
            await fill(producer, 4, b"early")
            await asyncio.sleep(6)
            await fill(producer, 40, b"later")
            async with asyncio.timeout(30):
                while len(got) < 64 - begins:
                    await asyncio.sleep(0.1)
            task.cancel()
            await asyncio.wait([task])
    assert [offset for offset, _ in got] == [*range(begins, 64)]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"is read from offset {begins} on instead of the group's 30: it ends at 20 (about 10 messages are lost)" in line


@pytest.mark.parametrize("end", ["latest", None])
async def test_group_above_the_end_stops(end: Any) -> None:
    async with EmbeddedRocketMQ() as server:
        await committed_at(server, 30)
        server.truncate("broker-a", 10)
        async with PullConsumer("c", namesrv=server.namesrv) as consumer:
            with pytest.raises(
                OffsetRangeError, match=r"the group's offset 30 of .* is above its end 20, because .*; begin at"
            ) as e:
                await each(consumer.read("T", start="committed", end=end, above_end="stop"), print)
            assert (e.value.min_offset, e.value.max_offset) == (0, 20)
            with pytest.raises(ConfigError, match='above_end must be "end", "earliest" or "stop", not '):
                consumer.read("T", start="committed", above_end="latest")  # type: ignore[arg-type]


async def test_group_at_the_end_of_a_queue() -> None:
    async with EmbeddedRocketMQ() as server:
        await committed_at(server, 3)
        async with PullConsumer("c", namesrv=server.namesrv) as consumer:
            assert [item async for item in consumer.read("T", start="committed")] == []


@pytest.mark.parametrize("start", ["committed", "latest", "datetime", "offsets"])
@pytest.mark.parametrize("new", [3, 10, 15])
async def test_reader_that_has_read_nothing_yet(start: str, new: int) -> None:
    """What lay before its start is lost, and the queue is filled up to there or further."""
    async with EmbeddedRocketMQ() as server, PullConsumer("c", namesrv=server.namesrv) as consumer:
        await committed_at(server, 30)
        starts: dict[str, Any] = {"datetime": datetime.now(UTC), "offsets": {Q0: 30}}
        got: list[bytes] = []
        reading = asyncio.create_task(
            each(consumer.read("T", start=starts.get(start, start), end=None), lambda item: got.append(item.body))
        )
        await asyncio.sleep(1)
        lose(server, 10)
        async with Producer("after", namesrv=server.namesrv, instance_name="after") as producer:
            await fill(producer, new, b"new")
        with pytest.raises(OffsetRangeError, match="read up to offset 30, and may have other messages from 20 on") as caught:
            await asyncio.wait_for(reading, 30)
        assert got == []
        assert caught.value.max_offset == 20 + new
        # what the text says to do
        assert len([item async for item in consumer.read("T", start={Q0: 20})]) == new


@pytest.mark.parametrize("start", ["earliest", "latest"])
@pytest.mark.parametrize("wanted", [0, 5])
async def test_reader_with_tags_goes_back_behind_what_it_was_given(wanted: int, start: Any) -> None:
    """What is stored in the place of messages that it has passed over is read, and nothing twice."""
    async with (
        EmbeddedRocketMQ() as server,
        Producer("g", namesrv=server.namesrv) as producer,
        PullConsumer("c", namesrv=server.namesrv) as consumer,
    ):
        await committed_at(server, 3)
        got: list[bytes] = []
        reading = asyncio.create_task(
            each(consumer.read("T", start=start, end=None, tags="wanted"), lambda item: got.append(item.body))
        )
        await asyncio.sleep(1)
        for number in range(wanted):
            await producer.send(Message("T", b"%d" % number, tags="wanted"), queue=Q0)
        await asyncio.sleep(1)
        for _ in range(40):
            await producer.send(Message("T", b"-", tags="other"), queue=Q0)
        await asyncio.sleep(3)
        lose(server, 20)
        async with Producer("after", namesrv=server.namesrv, instance_name="after") as other:
            for number in range(30):
                await other.send(Message("T", b"new %d" % number, tags="wanted"), queue=Q0)
        async with asyncio.timeout(30):
            while len(got) < wanted + 30:
                await asyncio.sleep(0.1)
        await asyncio.sleep(20)
        assert got == [*(b"%d" % number for number in range(wanted)), *(b"new %d" % number for number in range(30))]
        reading.cancel()
        await asyncio.wait([reading])


@pytest.mark.parametrize("pause", [False, True])
async def test_loss_on_the_same_connection(pause: bool) -> None:
    """A proxy keeps its connection while the broker behind it has another store. The end is lower than before; or the caller
    takes nothing for a while."""
    async with (
        EmbeddedRocketMQ() as server,
        Producer("g", namesrv=server.namesrv) as producer,
        PullConsumer("c", namesrv=server.namesrv) as consumer,
    ):
        await committed_at(server, 30)
        got = [0]
        reading = consumer.read("T", start={Q0: 0}, end=None)
        assert (await anext(reading)).queue_offset == 0
        await asyncio.sleep(1)
        server.truncate("broker-a", 10)
        if pause:
            await fill(producer, 40, b"new")
            await asyncio.sleep(10)
        else:
            await fill(producer, 5, b"new")
        with pytest.raises(OffsetRangeError, match=r"has lost messages that were read"):
            async with asyncio.timeout(60):
                await each(reading, lambda item: got.append(item.queue_offset))
        assert got == [*range(30)]


async def test_queue_that_comes_later_above_its_end(caplog: pytest.LogCaptureFixture) -> None:
    later = MessageQueue("T", "broker-a", 1)
    async with EmbeddedRocketMQ() as server, Producer("g", namesrv=server.namesrv) as producer:
        await committed_at(server, 3)
        async with PullConsumer("c", namesrv=server.namesrv, route_poll_interval=0.1) as consumer:
            server.resize("T", 2)
            await asyncio.sleep(1)
            await producer.send(Message("T", b"one"), queue=later)
            await consumer.commit(later, 9)
            server.resize("T", 1)
            await asyncio.sleep(1)
            reading = consumer.read("T", start="committed", end=None)
            task = asyncio.create_task(anext(reading))
            await asyncio.sleep(1)
            server.resize("T", 2)
            await asyncio.sleep(2)
            await producer.send(Message("T", b"two"), queue=later)
            async with asyncio.timeout(30):
                assert (await task).body == b"two"
            await reading.aclose()
    assert "is read from offset 1 on instead of the group's 9" in caplog.text
