"""The embedded broker serves pops as a real 5.5.0 broker: both answer one conversation alike."""

from __future__ import annotations

import asyncio
import uuid

from rmq_async import run
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.cluster import RealCluster

from ..embedded.pops.dialogue import Dialogue
from ..embedded.pops.support import PopClient


async def held(address: str) -> list[str]:
    async with PopClient(address) as client:
        return await Dialogue(client, uuid.uuid4().hex[:8]).run()


def test_both_brokers_answer_pops_alike(feature_cluster: RealCluster) -> None:
    async def main() -> None:
        async with EmbeddedRocketMQ() as server:
            real, embedded = await asyncio.gather(held(feature_cluster.brokers[0].address), held(server.brokers["broker-a"]))
        assert embedded == real
        assert len(real) > 100

    run(main())
