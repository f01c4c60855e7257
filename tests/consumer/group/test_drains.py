"""What is under way when a queue is given up, or its pulls begin anew."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import Consumer, MessageExt, MessageQueue, Retry
from rmq_async.consumer.handling import redelivery as outcomes
from rmq_async.consumer.held_queue import HeldQueue
from rmq_async.consumer.queues.assignment import Assignment
from rmq_async.consumer.supervisor import Supervisor
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.reading.read_marks import ReadMarks
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, until

Q0 = MessageQueue("T", "broker-a", 0)
RETRIES = MessageQueue("%RETRY%g", "broker-a", 0)


@pytest.mark.virtual_time
async def test_drain_waits_for_messages_without_a_handler_that_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next owner would give each of them back a second time."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await create(server.namesrv, "Old", queues=1)

        async def fails(message: MessageExt) -> None:
            raise ValueError("again")

        both = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        both.subscribe("T", Seen())
        both.subscribe("Old", fails)
        async with both:
            await send(server.namesrv, b"x", topic="Old")
            await both.wait_settled(1)
        go, asked, send_back = asyncio.Event(), asyncio.Event(), outcomes.send_back

        async def later(*args: Any, **options: Any) -> None:
            asked.set()
            await go.wait()
            await send_back(*args, **options)

        monkeypatch.setattr(outcomes, "send_back", later)
        one = Consumer("g", namesrv=server.namesrv)
        one.subscribe("T", Seen())
        await one.start()
        await asked.wait()
        stopping = asyncio.create_task(one.stop())
        await asyncio.sleep(0.2)
        go.set()
        await stopping
        assert [each.reconsume_times for each in server.retries("g")] == [1, 2]
        assert server.progress("g")[RETRIES] == 1


@pytest.mark.parametrize("ticks", range(4))
async def test_pull_again_that_is_cancelled_leaves_the_queue_pulled(ticks: int) -> None:
    """``wait_idle`` begins the pulls anew, and the end of its time is no end of the queue."""
    begun: list[HeldQueue] = []

    async def pulls(held: HeldQueue) -> None:
        begun.append(held)
        await asyncio.Event().wait()

    unused: Any = None
    intake: Any = SimpleNamespace(marks=ReadMarks())
    instance: Any = SimpleNamespace(names=SimpleNamespace(shown_queue=lambda queue: queue))
    pulling: Any = SimpleNamespace(run=pulls)
    supervisor = Supervisor()
    assignment = Assignment(instance, {}, supervisor, pulling, unused, unused, intake)
    assignment.open(Q0, 0, None)
    await asyncio.sleep(0)
    again = asyncio.create_task(assignment.pull_again(assignment.held[Q0]))
    for _ in range(ticks):
        await asyncio.sleep(0)
    again.cancel()
    await asyncio.wait([again])
    await asyncio.sleep(0.01)
    names = [task.get_name() for task in asyncio.all_tasks()]
    await supervisor.close()
    assert len([name for name in names if name.startswith("rmq_async pulls of")]) == 1
    assert len(begun) == (2 if ticks else 1)


async def test_second_signal_ends_the_wait_for_threads() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        began, release = threading.Event(), threading.Event()

        def blocks(message: MessageExt) -> None:
            began.set()
            release.wait(60)

        consumer = Consumer("g", namesrv=server.namesrv)
        consumer.subscribe("T", blocks)
        running = asyncio.create_task(consumer.run(signals=(signal.SIGUSR1,)))
        try:
            await until(lambda: consumer.health().ready)
            await send(server.namesrv, b"x")
            await until(began.is_set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await until(lambda: not consumer.health().ready)
            assert not running.done()
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.wait_for(running, 60)
        finally:
            release.set()


async def test_second_signal_ends_calls_that_would_begin_after_it() -> None:
    """Messages to deliver again may wait for a slot below one of another topic that is settled already."""
    async with EmbeddedRocketMQ(delay_levels=[0.01]) as server:
        await create(server.namesrv, queues=1)
        await create(server.namesrv, "U", queues=1)
        second: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            if not message.reconsume_times:
                raise ValueError("again")
            second.append(message.body)
            if message.body.startswith(b"slow"):
                await asyncio.sleep(100)

        consumer = Consumer("g", namesrv=server.namesrv, retry=Retry(delays=(1,)))
        consumer.subscribe("T", handler, concurrency=1)
        consumer.subscribe("U", handler)
        running = asyncio.create_task(consumer.run(signals=(signal.SIGUSR1,)))
        await until(lambda: consumer.health().ready)
        await send(server.namesrv, b"slow 1", b"slow 2")
        await consumer.wait_settled(2)
        await send(server.namesrv, b"quick", topic="U")
        await until(lambda: b"quick" in second and b"slow 1" in second)
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: not consumer.health().ready)
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(running, 60)
        assert sorted(second) == [b"quick", b"slow 1"]


@pytest.mark.parametrize("silent", ["brokers", "all"])
@pytest.mark.parametrize("timeout", [0.0, 3.0, 5.0, 25.0])
def test_stop_ends_in_its_time(timeout: float, silent: str) -> None:
    """Brokers do not answer, and a handler ignores its cancellation. The last steps have 1 s, also where less was given."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        release = asyncio.Event()

        async def ignores(message: MessageExt) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        consumer = member("g", s.namesrv, "one", ignores)
        await consumer.start()
        await send(s.namesrv, *[b"%d" % number for number in range(20)])
        await until(lambda: consumer.stats().running == 20)
        for name in ["broker-a", "broker-b", *(["namesrv-0"] if silent == "all" else [])]:
            s.machine(name).pause()
        began = s.now
        await consumer.stop(timeout=timeout)
        assert s.now - began == pytest.approx(max(timeout, 1.0), abs=0.1)
        release.set()
        await asyncio.sleep(1)

    Simulation(3, brokers=2, faults=None).run(main)


def test_stop_ends_drains_of_a_rebalance_in_its_time() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        seen = Seen(lambda message: asyncio.sleep(1000))
        first = member("g", s.namesrv, "one", seen)
        await first.start()
        await send(s.namesrv, *[b"%d" % number for number in range(20)])
        await until(lambda: first.stats().running == 20)
        async with member("g", s.namesrv, "two", Seen()):
            await until(lambda: len(first.assignment) < 9)  # it drains for 10 s
            began = s.now
            await first.stop(timeout=3.0)
            assert 1.9 < s.now - began < 2.1

    Simulation(4, brokers=2, faults=None).run(main)
