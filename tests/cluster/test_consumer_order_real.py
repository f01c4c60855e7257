"""Order by key and by queue on real brokers: across rebalances, failing attempts, and beside an orderly Java member. In
full: ``benchmarks/consumer_order.py``."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from uuid import uuid4

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, Producer
from rmq_async.testing.cluster import RealCluster

from ..support.java.program import require_javac
from .conftest import OLD_IS_DEEP
from .group_members import Group
from .group_order import key_rates, ordered_changes
from .java_members import java_members

SEED = 5


@OLD_IS_DEEP
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


@pytest.mark.deep
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


async def test_messages_without_a_key_are_handled_one_at_a_time(each_cluster: RealCluster) -> None:
    """Sent with ``key=`` of the call, which no broker stores; those with a sharding key go on beside them."""
    topic, running, begun = f"Keyless{uuid4().hex[:8]}", Counter[str](), defaultdict[str, list[int]](list)
    beside = False

    async def handle(message: MessageExt) -> None:
        nonlocal beside
        key = message.sharding_key or ""
        running[key] += 1
        assert running[key] == 1
        begun[key].append(message.queue_offset)
        await asyncio.sleep(0.01)
        beside |= running.total() > 1
        running[key] -= 1

    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("senders", namesrv=each_cluster.namesrv) as producer,
    ):
        await admin.create_topic(topic, queues=1)
        for number in range(20):
            await producer.send(Message(topic, b"x"), key=f"k{number}")
            await producer.send(Message(topic, b"x", sharding_key="one"))
    consumer = Consumer(f"{topic}Group", namesrv=each_cluster.namesrv, start_from="earliest")
    consumer.subscribe(topic, handle, order="key")
    async with consumer:
        await consumer.wait_settled(40, timeout=20)
        async with asyncio.timeout(30):  # a busy broker may have known no member of the new group when it was last asked
            health = consumer.health()
            while [problem.code for problem in health.problems] != ["key_missing"]:
                await asyncio.sleep(0.1)
                health = consumer.health()
        assert consumer.stats().failed == 0
    assert begun == {"": [*range(0, 40, 2)], "one": [*range(1, 40, 2)]}
    assert beside
    assert health.ready
