"""Order by key and by queue on real brokers: across rebalances, failing attempts and beside an orderly Java member; the lock of
the group. In full: ``benchmarks/consumer_order.py``."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from rmq_async import Admin, ClientConfig, Consumer, Message, MessageExt, Producer
from rmq_async.client import ClientInstance
from rmq_async.consumer.group import QueueLocks
from rmq_async.testing.cluster import RealCluster

from ..client.support import until
from ..java.program import require_javac
from .group_members import Group
from .group_order import key_rates, ordered_changes
from .java_members import java_members

SEED = 5


async def test_order_by_key_across_rebalances_and_failing_attempts(each_cluster: RealCluster, tmp_path: Path) -> None:
    async with Group(
        each_cluster, tmp_path / "files", 150.0, 0.1, queues=4, order="key", keys=20, fails=0.05, retry=(16, (0.05, 0.2))
    ) as group:
        count, order = await ordered_changes(group, 5, 1.5, SEED, members=2)
    print(f"seed {SEED}: {count}, {order}")
    assert count.handled == count.sent > 0
    assert (count.lost, count.repeated, count.retried, count.dead_letters) == (0, 0, 0, 0)
    assert order.failed > 20
    assert (order.overlaps, order.backwards) == (0, 0)


async def test_order_by_queue_beside_an_orderly_java_member(cluster: RealCluster, tmp_path: Path) -> None:
    require_javac()
    async with (
        Group(cluster, tmp_path / "files", 100.0, 0.02, queues=6, order="queue") as group,
        java_members(cluster.namesrv, group.name, group.work, 5.0, orderly=True) as java,
    ):
        count, order = await ordered_changes(group, 4, 3.0, SEED, members=2, java=java)
        of_java = sum(call.member == "member-2" for call in group.calls())
    print(f"seed {SEED}: {count}, {order}, {of_java} calls of the first Java member")
    assert count.handled == count.sent > 0
    assert (count.lost, count.dead_letters) == (0, 0)
    assert of_java > 0
    assert (order.overlaps, order.backwards) == (0, 0)


async def test_ordered_keys_are_handled_at_a_time(cluster: RealCluster) -> None:
    """One queue, many keys: the handlers of different keys run at the same time. The rates are measured by hand."""
    rates = await key_rates(cluster, 2000, 200, 0.01, 1, 100, 4000)
    print(rates)
    assert rates.ordered[0] > 2 / 0.01
    assert (rates.overlaps, rates.backwards) == (0, 0)


@pytest.mark.parametrize("way", ["stop", "cancelled call", "rebalance", "failed start"])
async def test_order_by_queue_holds_the_lock_of_the_group_until_it_leaves(each_cluster: RealCluster, way: str) -> None:
    """Another client asks for the locks under the group's own name, as Java's orderly members do."""
    name = f"locks-{uuid4().hex[:12]}"
    hangs = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        hangs.set()
        await asyncio.Event().wait()

    def member(instance_name: str) -> Consumer:
        consumer = Consumer(name, namesrv=each_cluster.namesrv, instance_name=instance_name, handover_timeout=1.0)
        consumer.subscribe(name, handle, order="queue")
        return consumer

    async with Admin(namesrv=each_cluster.namesrv) as admin, AsyncExitStack() as stack:
        await admin.create_topic(name, queues=2)
        probe = await ClientInstance.acquire(ClientConfig(namesrv=each_cluster.namesrv, instance_name=name))
        stack.push_async_callback(probe.release)
        await probe.routes.get(name, 3.0)
        locks = QueueLocks(probe, name)
        consumer = member("one")
        await consumer.start()
        queues = sorted(queue for queue in consumer.assignment if queue.topic == name)
        assert len(queues) == 2
        assert await locks.lock(queues) == frozenset()
        expected = set(queues)
        if way == "cancelled call":
            async with Producer(f"p-{name}", namesrv=each_cluster.namesrv) as producer:
                await producer.send(Message(name, b"hangs"))
            await hangs.wait()
            await consumer.stop(4.0)
        elif way == "rebalance":
            other = await stack.enter_async_context(member("two"))
            await until(lambda: len([queue for queue in other.assignment if queue.topic == name]) == 1)
            assert await locks.lock(queues) == frozenset()  # each has the lock of its own
            await other.stop()
            await consumer.stop()
        elif way == "failed start":
            await consumer.stop()
            await locks.lock(queues)
            await locks.unlock(queues)
            starting = asyncio.create_task(consumer.start())
            await until(lambda: consumer.assignment)
            starting.cancel()
            await asyncio.wait([starting])
            await consumer.stop()
        else:
            await consumer.stop()
        assert await locks.lock(queues) == expected
        await locks.unlock(queues)
