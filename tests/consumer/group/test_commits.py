"""Commits that meet each other."""

from __future__ import annotations

import asyncio

from rmq_async import Consumer, MessageQueue
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, send

Q0 = MessageQueue("T", "broker-a", 0)


async def test_commit_during_one_in_the_background_commits_what_moved_since() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        consumer = Consumer("g", namesrv=server.namesrv, commit_interval=0.05)
        consumer.subscribe("T", Seen())
        async with consumer:
            for number in range(1, 6):
                await send(server.namesrv, b"%d" % number)
                await consumer.wait_idle()
                server.delay(0.1)  # commits are under way most of the time
                await asyncio.sleep(0.06)
                server.delay(0)
                await send(server.namesrv, b"%d more" % number)
                await consumer.wait_idle()
                await consumer.commit()
                assert server.progress("g")[Q0] == number * 2
