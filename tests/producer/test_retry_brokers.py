"""Which broker a further attempt goes to, where all of them fail."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from rmq_async import Admin, Producer, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode

from .support import Send, awaited, batched, deferred

pytestmark = pytest.mark.virtual_time

WAYS = {"awaited": awaited, "deferred": deferred, "batched": batched}
SEND = {way: RequestCode.SEND_BATCH_MESSAGE if way == "batched" else RequestCode.SEND_MESSAGE_V2 for way in WAYS}


async def tried(producer: Producer, send: Send, **options: Any) -> list[str]:
    """The brokers of a call's attempts, all of which fail."""
    with pytest.raises(SendError) as caught:
        await send(producer, **options)
    return [attempt.queue.broker_name for attempt in caught.value.attempts]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("queues", [1, 4, 8])
@pytest.mark.parametrize("options", [{}, {"latency_fault": True}], ids=["in turn", "latency_fault"])
async def test_retry_third_attempt_leaves_the_newest_broker(way: str, queues: int, options: dict[str, Any]) -> None:
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=queues)
        async with Producer("group", namesrv=server.namesrv, **options) as producer:
            server.fail_next(14, 60, request=SEND[way])
            for first, second, third in await asyncio.gather(*[tried(producer, WAYS[way]) for _ in range(20)]):
                assert first == third != second


async def test_retry_never_repeats_the_newest_of_three_brokers() -> None:
    async with EmbeddedRocketMQ(brokers=3) as server, Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", queues=4)
        async with Producer("group", namesrv=server.namesrv, retries=5) as producer:
            server.fail_next(1, 120, request=SEND["awaited"])
            for brokers in await asyncio.gather(*[tried(producer, awaited, timeout=10.0) for _ in range(20)]):
                assert len(set(brokers[:3])) == 3
                assert all(one != other for one, other in itertools.pairwise(brokers)), brokers
