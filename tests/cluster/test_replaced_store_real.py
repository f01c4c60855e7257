"""A real broker whose store is replaced by an older copy: members handle what is acknowledged since; and one without offsets."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Admin, Consumer, PullConsumer, run
from rmq_async.testing.cluster import OLD_VERSION, RealCluster, require

from ..client.support import until
from .conftest import NO_TIMERS
from .replaced_store import KINDS, LATER, OLD, SETTINGS, replace


@pytest.mark.parametrize(
    ("version", "new", "offsets"), [("5.5.0", 30, False), pytest.param(OLD_VERSION, 3, True, marks=pytest.mark.deep)]
)
def test_store_replaced_by_an_older_copy(version: str, new: int, offsets: bool) -> None:
    require()

    async def main() -> None:
        async with RealCluster(version=version, broker_conf=SETTINGS) as cluster:
            counts = await replace(cluster, new, offsets=offsets)
        print(counts)
        assert {kind: (each.acknowledged, each.handled) for kind, each in counts.items()} == dict.fromkeys(KINDS, (new, new))
        assert counts["reading"].lost == LATER
        assert counts["started"].lost == (0 if offsets else LATER)
        assert max(each.repeated for each in counts.values()) <= OLD + LATER

    run(main())


@pytest.mark.parametrize("version", ["5.5.0", pytest.param(OLD_VERSION, marks=pytest.mark.deep)])
def test_member_that_has_read_nothing_gives_its_offset_to_a_broker_without_offsets(version: str) -> None:
    """It stops while the broker, which was killed before it wrote its offsets, is down."""
    require()

    async def main() -> None:
        conf = {**NO_TIMERS, "flushConsumerOffsetInterval": "600000"}
        async with RealCluster(version=version, broker_conf=conf) as cluster:
            async with Admin(namesrv=cluster.namesrv) as admin:
                await admin.create_topic("T", queues=1)
            async with PullConsumer("g", namesrv=cluster.namesrv) as tool:
                (queue,) = await tool.queues("T")
                await tool.commit(queue, 0)
            member = Consumer("g", namesrv=cluster.namesrv, stop_timeout=60.0, start_from="latest")
            member.subscribe("T", print)
            async with member:
                await until(lambda: queue in member.assignment, 60.0)
                await member.wait_idle()
                await cluster.brokers[0].kill()
                stop = asyncio.create_task(member.stop())
                await cluster.brokers[0].start()
                await stop
            async with PullConsumer("g", namesrv=cluster.namesrv) as tool:
                assert await tool.committed(queue) == 0

    run(main())
