"""One side of pull.py in a process of its own: ``python one_read.py SIDE LOOP NAMESRV TOPIC MESSAGES WARM_UPS BROKER_PID``.

The whole topic is read WARM_UPS times and then once more, measured from the first step to the last message; MESSAGES is
their number. Prints one line of JSON, as every peer's program does: what came, seconds, CPU of this process and of the
broker (its process id, 0 for unknown), peak memory.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH leaves out a script's own directory
import bare_pull
from runs import on_loop, peak_rss_mb, process_seconds

PULLED: Final = 32


class Came(NamedTuple):
    messages: int
    size: int


Read = Callable[[], Awaitable[Came]]


@asynccontextmanager
async def floor(namesrv: str, topic: str) -> AsyncIterator[Read]:
    async def once() -> Came:
        reader = await bare_pull.read(namesrv, topic)
        return Came(reader.messages, reader.size)

    yield once


@asynccontextmanager
async def ours_read(namesrv: str, topic: str) -> AsyncIterator[Read]:
    from rmq_async import PullConsumer  # here, so that the floor's process is as bare as its loop

    async def once() -> Came:
        messages = size = 0
        async for message in consumer.read(topic):
            messages += 1
            size += len(message.body)
        return Came(messages, size)

    async with PullConsumer("benchmark-pulls", namesrv=namesrv) as consumer:
        yield once


@asynccontextmanager
async def ours_pull(namesrv: str, topic: str) -> AsyncIterator[Read]:
    """A coroutine for each queue, one pull after the other."""
    from rmq_async import MessageQueue, PullConsumer

    async def of_queue(queue: MessageQueue) -> Came:
        messages = size = 0
        offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
        while offset < end:
            result = await consumer.pull(queue, offset, max_messages=PULLED)
            offset = result.next_offset
            for message in result.messages:
                messages += 1
                size += len(message.body)
        return Came(messages, size)

    async def once() -> Came:
        came = await asyncio.gather(*[of_queue(queue) for queue in await consumer.queues(topic)])
        return Came(sum(each.messages for each in came), sum(each.size for each in came))

    async with PullConsumer("benchmark-pulls", namesrv=namesrv) as consumer:
        yield once


SIDES: Final = {"read": ours_read, "pull": ours_pull, "floor": floor}


async def run(side: str, namesrv: str, topic: str, warm_ups: int, broker: int) -> dict[str, float | None]:
    """Consumers are started before, as Java's are; finding the bounds is measured, tens of milliseconds of a second or more."""
    async with SIDES[side](namesrv, topic) as once:
        for _ in range(warm_ups):
            await once()
        gc.collect()
        broker_before = process_seconds(broker) if broker else 0.0
        start, cpu = time.perf_counter(), time.process_time()
        came = await once()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        broker_seconds = process_seconds(broker) - broker_before if broker else None
    return {
        "messages": came.messages,
        "bytes": came.size,
        "seconds": seconds,
        "client_seconds": cpu,
        "broker_seconds": broker_seconds,
        "rss_mb": peak_rss_mb(),
    }


if __name__ == "__main__":
    side, loop, namesrv, topic, _, warm_ups, broker = sys.argv[1:]
    result = on_loop(loop, run(side, namesrv, topic, int(warm_ups), int(broker)))
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
