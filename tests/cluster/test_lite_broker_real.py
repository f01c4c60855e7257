"""The embedded broker serves lite topics as a real 5.5.0 broker: both answer one conversation alike."""

from __future__ import annotations

import asyncio
import uuid

from rmq_async import run
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.cluster import RealCluster

from ..embedded.lite_client import LiteClient
from ..embedded.lite_dialogue import LiteDialogue


async def held(address: str) -> list[str]:
    async with LiteClient(address) as client:
        return await LiteDialogue(client, uuid.uuid4().hex[:8]).run()


def test_both_brokers_answer_requests_about_lite_topics_alike(feature_cluster: RealCluster) -> None:
    async def main() -> None:
        async with EmbeddedRocketMQ() as server:
            real, embedded = await asyncio.gather(held(feature_cluster.brokers[0].address), held(server.brokers["broker-a"]))
        assert embedded == real
        assert len(real) > 200

    run(main())
