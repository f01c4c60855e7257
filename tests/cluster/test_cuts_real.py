"""Sends to a real broker whose connection is cut at some bytes of request and answer; every byte: tests/producer/test_cuts.py."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from itertools import product

from rmq_async import Admin, Producer, run
from rmq_async.testing import ClusterProxy
from rmq_async.testing.cluster import RealCluster

from ..support.cuts import CutSends, Judge, send_one, send_two
from .accounting import read_all
from .history import copies

TIMEOUT = 10.0
"""Seconds: no call comes near it, however slow the machine."""


def some(length: int) -> Sequence[int]:
    return (0, 1, 4, 5, 8, length // 3, length // 2, length - 2, length - 1, length)


def test_sends_cut_at_some_bytes_are_reported_truly_or_sent_again(cluster: RealCluster) -> None:
    async def one(cuts: CutSends, topic: str, retries: int) -> None:
        async with (
            ClusterProxy(cluster.namesrv) as proxies,
            Producer("cut", namesrv=proxies.namesrv, instance_name=topic, retries=retries, timeout=TIMEOUT) as producer,
        ):
            await cuts.run(producer, proxies.brokers[cluster.brokers[0].name], topic, some)

    async def main() -> None:
        topics: dict[CutSends, list[str]] = {}
        async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin, asyncio.TaskGroup() as runs:
            for send, way in product((send_one, send_two), ("to_server", "to_client")):
                cuts = CutSends(Judge(TIMEOUT, grace=30.0), send, way)
                topics[cuts] = [f"cuts-{uuid.uuid4().hex[:12]}" for _ in range(2)]
                for topic, retries in zip(topics[cuts], (0, 2), strict=True):
                    await admin.create_topic(topic, queues=1, broker=cluster.brokers[0].name)
                    runs.create_task(one(cuts, topic, retries))
        for cuts, names in topics.items():
            cuts.hold_against([copy for name in names for copy in copies(await read_all(cluster.namesrv, name))])

    run(main())
