"""Locks of ordered queues, under the group's own name: held while a call runs, waited for after a crash, lost to another client."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import ClientConfig, Consumer, Message, MessageExt, MessageQueue, Producer, Retry, current_delivery
from rmq_async.client import ClientInstance, group_members
from rmq_async.consumer import Batch
from rmq_async.consumer.group.queue_locks import QueueLocks
from rmq_async.consumer.handling.dispatch import Dispatcher
from rmq_async.consumer.held_queue import Waiting
from rmq_async.consumer.queues.intake import Intake
from rmq_async.consumer.subscription import Subscription
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import Simulation

from .support import create, until

pytestmark = pytest.mark.virtual_time

Q0 = MessageQueue("T", "broker-a", 0)


def ordered(namesrv: str, handler: Callable[[Any], Any], name: str = "one", **options: Any) -> Consumer:
    consumer = Consumer("g", namesrv=namesrv, instance_name=name, start_from="earliest")
    consumer.subscribe("T", handler, **{"order": "queue"} | options)
    return consumer


async def send(namesrv: str, *bodies: bytes) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message("T", body), queue=Q0)


def test_lock_of_an_ordered_queue_that_another_client_got_ends_its_calls(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that has restarted grants the lock to another client; brokers also take an unlock in the name of others."""
    caplog.set_level(logging.ERROR, "rmq_async")

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, b"0", b"1")
        begun: list[tuple[bytes, float]] = []
        cancelled: list[float] = []

        async def hang(message: MessageExt) -> None:
            begun.append((message.body, s.now))
            try:
                await asyncio.sleep(200 if len(begun) == 1 else 0)
            except asyncio.CancelledError:
                cancelled.append(s.now)
                raise

        instance = await ClientInstance.acquire(ClientConfig(namesrv=s.namesrv, instance_name="another"))
        async with ordered(s.namesrv, hang) as consumer:
            await until(lambda: begun)
            await instance.routes.get("T", 3.0)
            locks = QueueLocks(instance, "g")
            assert await locks.lock([Q0]) == frozenset()
            (client_id,) = await group_members(instance, "g", "broker-a", "T")
            await locks.unlock_for(client_id, [Q0])
            assert await locks.lock([Q0]) == {Q0}
            await until(lambda: cancelled, 30.0)
            assert consumer.stats().failed == 0
            assert Q0 not in consumer.assignment
            (problem,) = [each for each in consumer.health().problems if each.code == "queue_lost"]
            assert (problem.queue, "1 messages in calls" in problem.text) == (Q0, True)
            await asyncio.sleep(15)
            assert [each.code for each in consumer.health().problems if each.queue == Q0] == ["queue_locked", "queue_lost"]
            assert len(begun) == 1
            await locks.unlock([Q0])
            await until(lambda: len(begun) == 3)
            assert [body for body, _ in begun] == [b"0", b"0", b"1"]
        await instance.release()

    Simulation(4, faults=None).run(main)
    assert "the lock of" in caplog.text


def test_lock_lost_by_a_stopped_queue_leaves_no_entry_of_the_stop() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        await send(s.namesrv, b"0", b"1")
        seen: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            seen.append(message.body)

        async with ordered(s.namesrv, handle) as consumer:
            await until(lambda: len(seen) == 2)
        await send(s.namesrv, b"2", b"3")
        s.brokers[0].expire(Q0, 3)
        instance = await ClientInstance.acquire(ClientConfig(namesrv=s.namesrv, instance_name="another"))
        consumer = Consumer("g", namesrv=s.namesrv, out_of_range="stop")
        consumer.subscribe("T", handle, order="queue")
        async with consumer:
            await until(lambda: [problem.code for problem in consumer.health().problems] == ["queue_stopped"])
            (intake,) = [each for each in gc.get_objects() if isinstance(each, Intake) and each.stopped]
            await instance.routes.get("T", 3.0)
            locks = QueueLocks(instance, "g")
            (client_id,) = await group_members(instance, "g", "broker-a", "T")
            await locks.unlock_for(client_id, [Q0])
            assert await locks.lock([Q0]) == {Q0}
            await until(lambda: Q0 not in consumer.assignment, 40.0)
            assert intake.stopped == {}
        await instance.release()

    Simulation(4, faults=None).run(main)


def test_queue_of_a_crashed_ordered_member_waits_for_the_end_of_its_lock() -> None:
    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=1)
        seen: list[tuple[str, float]] = []

        async def crashes(message: MessageExt) -> None:
            seen.append(("crashes", s.now))
            await asyncio.Event().wait()

        async def goes_on(message: MessageExt) -> None:
            seen.append(("goes on", s.now))

        async def serve() -> None:
            async with ordered(s.namesrv, crashes, "crashes"):
                await asyncio.Event().wait()

        machine = s.machine("service")
        machine.run(serve)
        await asyncio.sleep(25)
        await send(s.namesrv, b"0")
        await until(lambda: seen)
        machine.crash()
        crashed = s.now
        async with ordered(s.namesrv, goes_on, "goes on") as consumer:
            await until(lambda: any(each.code == "queue_locked" for each in consumer.health().problems), 60.0)
            await until(lambda: len(seen) > 1, 70.0)
        print("read", seen[1][1] - crashed, "s after the crash")
        assert 39 < seen[1][1] - crashed < 61

    Simulation(5, faults=None).run(main)


@pytest.mark.parametrize("seconds", [0.3, 3.0])
async def test_cancelled_stop_keeps_the_lock_of_a_call_that_has_not_ended(seconds: float) -> None:
    """``seconds``: for which a handler goes on after its cancellation."""
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1")
        began, calls = asyncio.Event(), list[str]()

        async def hang(_: MessageExt) -> None:
            began.set()
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(seconds)
                calls.append("ended")

        async def handle(_: MessageExt) -> None:
            calls.append("begun")

        first, second = ordered(server.namesrv, hang), ordered(server.namesrv, handle, "two")
        await first.start()
        await began.wait()
        async with second:
            stop = asyncio.ensure_future(first.stop())
            await asyncio.sleep(0.01)
            stop.cancel()
            await until(lambda: "begun" in calls, 120.0)
        assert calls == ["ended", "begun"]
        assert stop.cancelled()


async def test_order_by_queue_with_batches_takes_consecutive_messages_and_repeats_them_in_place() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await send(server.namesrv, *[b"%d" % number for number in range(10)])
        calls: list[tuple[list[int], int]] = []

        async def handle(batch: Batch) -> None:
            attempt = current_delivery().attempt
            calls.append(([int(message.body) for message in batch], attempt))
            if batch[0].body == b"4" and attempt == 1:
                raise ConnectionError("once")
            if b"8" in [message.body for message in batch] and attempt == 1:
                batch.mark_retry(batch[0])

        async with ordered(server.namesrv, handle, batch_size=4, retry=Retry(delays=(0.05,))) as consumer:
            await consumer.wait_idle()
            assert consumer.stats().handled == 10
        assert calls == [([0, 1, 2, 3], 1), ([4, 5, 6, 7], 1), ([4, 5, 6, 7], 2), ([8, 9], 1), ([8], 2)]
        assert not server.retries("g")


async def test_messages_of_a_failed_batch_are_due_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are due a moment later than the first one would miss its call."""
    due: dict[int, list[float]] = {}
    again = Dispatcher.again

    def note(dispatcher: Dispatcher, subscription: Subscription, item: Waiting, *when: float) -> None:
        again(dispatcher, subscription, item, *when)
        due.setdefault(item.attempt, []).append(item.due)

    monkeypatch.setattr(Dispatcher, "again", note)
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await send(server.namesrv, *[b"%d" % number for number in range(4)])

        async def handle(batch: Batch) -> None:
            if current_delivery().attempt == 1:
                raise ConnectionError("once")

        async with ordered(server.namesrv, handle, batch_size=4, retry=Retry(delays=(0.05,))) as consumer:
            await consumer.wait_idle()
    assert len(due[2]) == 4
    assert len(set(due[2])) == 1


async def test_order_by_queue_with_batch_wait_fills_batches_of_each_queue() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        calls: list[list[tuple[int, int]]] = []

        async def handle(batch: Batch) -> None:
            calls.append([(message.queue.queue_id, message.queue_offset) for message in batch])

        async with ordered(server.namesrv, handle, batch_size=3, batch_wait=0.5) as consumer:
            async with Producer("senders", namesrv=server.namesrv) as producer:
                for number in range(8):
                    await producer.send(Message("T", b"%d" % number), queue=Q0._replace(queue_id=number % 2))
            await consumer.wait_idle()
        assert sorted(calls) == [[(0, 0), (0, 1), (0, 2)], [(0, 3)], [(1, 0), (1, 1), (1, 2)], [(1, 3)]]
