"""How far a queue is pulled ahead of its handlers."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Consumer, Message, MessageExt, MessageQueue, Producer
from rmq_async.embedded import EmbeddedRocketMQ

from .support import create, until

pytestmark = pytest.mark.virtual_time


async def fill(namesrv: str, queues: int, count: int) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for queue_id in range(queues):
            for first in range(0, count, 100):
                batch = [Message("T", b"%d" % number) for number in range(first, first + 100)]
                await producer.send_batch(batch, queue=MessageQueue("T", "broker-a", queue_id))


@pytest.mark.parametrize(("options", "most"), [({"concurrency": 4}, 64), ({"concurrency": 4, "pull_size": 8}, 16), ({}, 64)])
async def test_queue_is_pulled_until_enough_messages_wait_for_slots(options: dict[str, int], most: int) -> None:
    """Handlers hang, then go on: all messages are handled, and no more than a pull above the limit waits."""
    gate, handled = asyncio.Event(), 0

    async def handler(message: MessageExt) -> None:
        nonlocal handled
        await gate.wait()
        handled += 1

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await fill(server.namesrv, 2, 500)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", **options)  # type: ignore[arg-type]
        consumer.subscribe("T", handler)
        async with consumer:
            running = options.get("concurrency", 64)
            await until(lambda: consumer.stats().running == running and consumer.stats().buffered >= 2 * most)
            await asyncio.sleep(0.1)
            assert consumer.stats().buffered <= running + 2 * (most + 32)
            gate.set()
            await until(lambda: handled == 1000)


async def test_messages_that_wait_for_their_key_do_not_stop_the_pulls() -> None:
    """All messages but one have a key whose handler hangs."""
    gate, others = asyncio.Event(), asyncio.Event()

    async def handler(message: MessageExt) -> None:
        if message.body == b"299":
            others.set()
        else:
            await gate.wait()

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await fill(server.namesrv, 1, 300)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", concurrency=4)
        consumer.subscribe("T", handler, order="key", key=lambda message: message.body == b"299")
        async with consumer:
            async with asyncio.timeout(10):
                await others.wait()
            gate.set()
