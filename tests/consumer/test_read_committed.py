"""``read(start="committed")``: from the group's offsets, the earliest message where it has none."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Admin, ConfigError, Message, MessageQueue, OffsetRangeError, Producer, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ

pytestmark = pytest.mark.virtual_time

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


async def fill(namesrv: str, queues: int, count: int) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("T", queues=queues)
    async with Producer("p", namesrv=namesrv) as producer:
        for number in range(count):
            for queue in range(queues):
                await producer.send(Message("T", b"%d" % number), queue=MessageQueue("T", "broker-a", queue))


async def test_read_from_committed_offsets() -> None:
    async with EmbeddedRocketMQ() as server:
        await fill(server.namesrv, 2, 3)
        async with PullConsumer("g", namesrv=server.namesrv) as consumer:
            await consumer.commit(Q0, 2)
            read = [(message.queue, message.queue_offset) async for message in consumer.read("T", start="committed")]
        assert sorted(read) == [(Q0, 2), (Q1, 0), (Q1, 1), (Q1, 2)]


async def test_read_from_committed_offset_of_a_new_queue() -> None:
    """A queue that comes later has no offset of the group: it is read from its first message."""
    async with EmbeddedRocketMQ() as server:
        await fill(server.namesrv, 1, 2)
        async with PullConsumer("g", namesrv=server.namesrv, route_poll_interval=0.1) as consumer:
            await consumer.commit(Q0, 1)
            reading = consumer.read("T", start="committed", end=None)
            assert (await anext(reading)).queue_offset == 1
            server.resize("T", 2)
            async with Producer("p", namesrv=server.namesrv) as producer:
                await producer.send(Message("T", b"new"), queue=Q1)
            async with asyncio.timeout(10):
                assert (await anext(reading)).body == b"new"
            await reading.aclose()


async def test_read_from_committed_offset_that_is_deleted() -> None:
    """Messages that the group has not had are gone, and that is an error."""
    async with EmbeddedRocketMQ() as server:
        await fill(server.namesrv, 1, 5)
        async with PullConsumer("g", namesrv=server.namesrv) as consumer:
            await consumer.commit(Q0, 1)
            server.expire(Q0, 3)
            with pytest.raises(OffsetRangeError):
                _ = [message async for message in consumer.read("T", start="committed")]


async def test_read_from_an_unknown_start() -> None:
    consumer = PullConsumer("g", namesrv="127.0.0.1:1")
    with pytest.raises(
        ConfigError, match='start must be "earliest", "latest", "committed", an aware datetime or offsets by queue'
    ):
        consumer.read("T", start="first")  # type: ignore[arg-type]
