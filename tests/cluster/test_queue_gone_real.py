"""Queues taken away from a topic on real brokers of both versions: what they answer, and what plain sends see of it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, run
from rmq_async.errors import QueueNotExistError
from rmq_async.testing.cluster import RealCluster

from .accounting import read_all


@pytest.mark.parametrize("options", [{}, {"batching": True}], ids=["singly", "gathered"])
def test_sends_survive_queues_taken_away(each_cluster: RealCluster, options: dict[str, Any]) -> None:
    async def main() -> None:
        topic = f"halved-{uuid.uuid4().hex[:12]}"
        async with (
            Admin(namesrv=each_cluster.namesrv, instance_name="operator") as admin,
            Producer("halved", namesrv=each_cluster.namesrv, route_poll_interval=600.0, **options) as producer,
        ):
            await admin.create_topic(topic, queues=8)
            await asyncio.gather(*[producer.send(Message(topic, b"before")) for _ in range(16)])
            await admin.create_topic(topic, queues=2)
            for _ in range(8):
                await asyncio.gather(*[producer.send(Message(topic, b"after")) for _ in range(8)])
            if not options:
                results = await asyncio.gather(*[producer.send(Message(topic, b"after")) for _ in range(8)])
                assert {result.attempts for result in results} == {1}
            with pytest.raises(QueueNotExistError, match=f"topic {topic} has no queue 5 on .*: it has 2 there") as caught:
                await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, each_cluster.brokers[0].name, 5))
            assert not caught.value.maybe_stored
        after = [message.queue.queue_id for message in await read_all(each_cluster.namesrv, topic) if message.body == b"after"]
        assert len(after) == (64 if options else 72)
        assert set(after) <= {0, 1}

    run(main())
