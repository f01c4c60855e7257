"""``rmq server`` under more than it can keep: it stays within its bound, loses nothing within it, and ends when it is asked to."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rmq_async import Message, MessageQueue, Producer, PullConsumer, RocketMQError

from .support import end, start

TOPIC = "Flood"
MEGABYTES = 16
BATCHES, BATCH, ONEWAY = 600, 32, 12_000
RECORD_OVERHEAD = 128
"""Bytes that the server counts for a message besides its record."""


@asynccontextmanager
async def server() -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await start("server", "--port", "0", "--json", "--max-memory", str(MEGABYTES))
    try:
        assert process.stdout is not None
        yield process, json.loads(await asyncio.wait_for(process.stdout.readline(), 60))["namesrv"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def most_resident(process: asyncio.subprocess.Process) -> float:
    """MiB; the most there ever was."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) / 1024


async def send_batches(producer: Producer, count: int) -> dict[tuple[MessageQueue, int], bytes]:
    """Bodies by queue and offset, as the answers name them."""
    stored: dict[tuple[MessageQueue, int], bytes] = {}
    numbers = iter(range(count))

    async def send() -> None:
        for number in numbers:
            bodies = [b"%06d %02d " % (number, place) + bytes(390) for place in range(BATCH)]
            result = await producer.send_batch([Message(TOPIC, body) for body in bodies])
            stored.update({(result.queue, result.queue_offset + place): body for place, body in enumerate(bodies)})

    await asyncio.gather(*[send() for _ in range(8)])
    return stored


async def ends_under_load(process: asyncio.subprocess.Process, producer: Producer, number: signal.Signals) -> None:
    async def load() -> None:
        with suppress(RocketMQError):
            await send_batches(producer, 1 << 30)

    task = asyncio.ensure_future(load())
    await producer.send(Message(TOPIC, b"behind the first of the load"))
    process.send_signal(number)
    ended = await end(process)
    assert (ended.code, ended.err) == (0, ""), ended
    await task


async def test_a_flood_stays_within_bounds_loses_nothing_within_them_and_ends_by_sigterm() -> None:
    async with (
        server() as (process, namesrv),
        Producer("flood", namesrv=namesrv, oneway_window=0, retries=0, stop_timeout=0.0) as producer,
        PullConsumer("flood", namesrv=namesrv) as consumer,
    ):
        stored = await send_batches(producer, BATCHES)
        assert len(stored) == BATCHES * BATCH
        for _ in range(ONEWAY):
            await producer.send_oneway(Message(TOPIC, bytes(400)))
        await producer.flush()
        await producer.send(Message(TOPIC, b"behind the one-way ones, as requests of one connection are served in turn"))
        sent = kept = size = 0
        for queue in await consumer.queues(TOPIC):
            offset, end_of_queue = await consumer.min_offset(queue), await consumer.max_offset(queue)
            sent += end_of_queue
            async for message in consumer.read(TOPIC, start={queue: offset}, end={queue: end_of_queue}):
                assert message.queue_offset == offset
                assert message.body == stored.get((queue, offset), message.body)
                offset, kept, size = offset + 1, kept + 1, size + message.store_size + RECORD_OVERHEAD
            assert offset == end_of_queue
        assert sent == BATCHES * BATCH + ONEWAY + 1
        assert kept < sent  # so the bound was reached
        assert MEGABYTES * 0.99 < size / 2**20 <= MEGABYTES
        assert most_resident(process) <= MEGABYTES * 1.25 + 64  # as docs/testing.md promises
        await ends_under_load(process, producer, signal.SIGTERM)


async def test_server_under_load_ends_by_sigint() -> None:
    async with server() as (process, namesrv), Producer("flood", namesrv=namesrv, retries=0, stop_timeout=0.0) as producer:
        await ends_under_load(process, producer, signal.SIGINT)
