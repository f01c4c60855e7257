"""Topics of real brokers that are deleted and created again under a member of a group."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest

from rmq_async import Admin, Consumer, Message, Producer
from rmq_async.testing.cluster import RealCluster

from ..consumer.group.support import Seen, until

TAKES: float = 60.0
"""Seconds at most: a broker looks at a held pull every 5 s, and a member confirms an end that lies below its offset."""


async def test_topics_made_anew_are_read_from_their_first_message(
    each_cluster: RealCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """One is there again at once, with fewer messages than were read. One has more, and was missed meanwhile."""
    shorter, longer, group = (f"Anew_{uuid.uuid4().hex}" for _ in range(3))
    seen = Seen()
    consumer = Consumer(group, namesrv=each_cluster.namesrv, start_from="earliest", handover_timeout=2.0)
    async with (
        Admin(namesrv=each_cluster.namesrv, request_timeout=30.0) as admin,
        Producer("senders", namesrv=each_cluster.namesrv) as producer,
    ):

        async def send(topic: str, count: int, age: str) -> None:
            bodies = [f"{age} {topic} {number}".encode() for number in range(count)]
            await asyncio.gather(*(producer.send(Message(topic, body)) for body in bodies))

        for topic in (shorter, longer):
            await admin.create_topic(topic, queues=1)
            consumer.subscribe(topic, seen)
        async with consumer:
            await asyncio.gather(send(shorter, 5, "old"), send(longer, 3, "old"))
            await until(lambda: len(seen.bodies) == 8, TAKES)
            with caplog.at_level(logging.ERROR, logger="rmq_async"):
                await admin.delete_topic(shorter)
                await admin.create_topic(shorter, queues=1)
                await admin.delete_topic(longer)
                consumer.pause()  # ends the pulls that the broker holds
                consumer.resume()
                await until(lambda: any(problem.code == "queue_unreadable" for problem in consumer.health().problems), TAKES)
                await admin.create_topic(longer, queues=1)
                await asyncio.gather(send(shorter, 3, "new"), send(longer, 9, "new"))
                await until(lambda: len(seen.bodies) == 20, TAKES)
            print(f"20 sent, {len(seen.bodies)} handled, {seen.twice} twice")
            assert seen.twice == 0
        said = [record.message for record in caplog.records if "deleted and created again" in record.message]
        assert len(said) == 2
