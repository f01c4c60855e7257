"""What a send costs beside CPU, on a real broker: memory that stays flat, no Task, no timer, an eighth of a write."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import pytest
import uvloop

from rmq_async import Admin, Message, Producer, run
from rmq_async.testing.cluster import RealCluster

from ..support.instances import client_of
from .accounting import stored_count

WORKERS = 64
MIB = 1024 * 1024


async def new_topic(namesrv: str) -> str:
    topic = f"memory-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic)
    return topic


async def in_flight(count: int, send: Callable[[int], Awaitable[object]], workers: int = WORKERS) -> None:
    """``count`` calls of ``send``, so many at a time as there are workers."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await send(number)

    await asyncio.gather(*[work() for _ in range(workers)])


# -- memory

COUNT, SIZE = 16_384, 64 * 1024

PROGRAM = """
import asyncio, json, os, sys
import psutil
from rmq_async import Message, Producer, run

async def main(namesrv, topic, count, size):
    process, resident, numbers = psutil.Process(), [], iter(range(count))

    async with Producer("memory", namesrv=namesrv, timeout=30) as producer:
        async def work():
            for number in numbers:
                await producer.send(Message(topic, os.urandom(size)))
                if number % (count // 100) == 0:
                    resident.append((number, process.memory_info().rss))
        await asyncio.gather(*[work() for _ in range(64)])
        resident.append((count, process.memory_info().rss))
    print(json.dumps(resident))

run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
"""


@pytest.mark.deep
def test_a_gibibyte_of_large_messages_leaves_memory_flat(cluster: RealCluster) -> None:
    topic = run(new_topic(cluster.namesrv))
    began = monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, cluster.namesrv, topic, str(COUNT), str(SIZE)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    resident: list[tuple[int, int]] = sorted(json.loads(done.stdout))
    early = [rss for number, rss in resident if number <= COUNT // 10]
    late = [rss for number, rss in resident if number > COUNT // 10]
    growth = max(late) - early[-1]
    print(
        f"{COUNT} messages of {SIZE} bytes in {monotonic() - began:.1f} s: resident {early[-1] / MIB:.1f} MiB after the first "
        f"tenth, {late[-1] / MIB:.1f} MiB at the end, {growth / MIB:.1f} MiB growth at most"
    )
    assert growth <= 16 * MIB
    assert len(late) > 80
    assert run(stored_count(cluster.namesrv, topic, COUNT)) == COUNT


# -- tasks, timers, writes


class Counts:
    """``timers`` counts ``call_later`` and ``call_at``, however one leads to the other."""

    def __init__(self) -> None:
        self.tasks = self.timers = 0
        self.inside = False

    def timer(self, make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self.inside:
            return make(*arguments, **options)
        self.timers += 1
        self.inside = True
        try:
            return make(*arguments, **options)
        finally:
            self.inside = False


def counting(loop_class: type[asyncio.AbstractEventLoop], counts: Counts) -> Callable[[], asyncio.AbstractEventLoop]:
    """Makes loops that count the Tasks and timers they are asked for."""

    class CountingLoop(loop_class):  # type: ignore[misc, valid-type]
        def create_task(self, *arguments: Any, **options: Any) -> Any:
            counts.tasks += 1
            return super().create_task(*arguments, **options)

        def call_later(self, *arguments: Any, **options: Any) -> Any:
            return counts.timer(super().call_later, *arguments, **options)

        def call_at(self, *arguments: Any, **options: Any) -> Any:
            return counts.timer(super().call_at, *arguments, **options)

    return CountingLoop


@pytest.mark.parametrize("loop_class", [uvloop.Loop, asyncio.SelectorEventLoop], ids=["uvloop", "asyncio"])
def test_sends_make_no_task_no_timer_and_few_writes(cluster: RealCluster, loop_class: type[asyncio.AbstractEventLoop]) -> None:
    counts = Counts()

    async def main() -> None:
        topic = await new_topic(cluster.namesrv)
        async with Producer("costs", namesrv=cluster.namesrv) as producer:

            async def send(number: int) -> None:
                await producer.send(Message(topic, b"." * 128))

            async def send_async(number: int) -> None:
                await (await producer.send_async(Message(topic, b"." * 128)))

            async def send_batch(number: int) -> None:
                await producer.send_batch([Message(topic, b"." * 128)] * 4)

            await in_flight(1_000, send)
            connection = (await client_of(producer)).pool.open[cluster.brokers[0].address]
            for way, workers, number in (
                (send, 64, 4_000),
                (send, 1, 500),
                (send_async, 64, 4_000),
                (send_batch, 64, 2_000),
            ):
                tasks, timers, writes, began = counts.tasks, counts.timers, connection.writes, monotonic()
                await in_flight(number, way, workers)
                seconds, tasks, timers = monotonic() - began, counts.tasks - tasks - workers, counts.timers - timers
                writes = connection.writes - writes
                print(
                    f"{way.__name__}, {workers} in flight: {number} calls in {seconds:.2f} s, {tasks} Tasks, {timers} timers, "
                    f"{number / writes:.1f} messages per write"
                )
                assert tasks == 0
                assert timers <= 10 + 110 * seconds  # the connection's own: they do not grow with the messages
                if way is send and workers == 64:
                    assert writes <= number / 8

    with asyncio.Runner(loop_factory=counting(loop_class, counts)) as runner:
        runner.run(main())
