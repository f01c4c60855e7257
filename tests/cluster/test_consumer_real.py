"""Pulling and reading on real brokers of both versions: what was acknowledged is read, with its offsets, filters and edges."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic

import pytest

from rmq_async.admin import Admin
from rmq_async.config import ClientConfig
from rmq_async.consumer import PullConsumer
from rmq_async.errors import BrokerError, OffsetRangeError, TopicNotFoundError
from rmq_async.reading import reader as reading_module
from rmq_async.results import PullStatus
from rmq_async.testing.cluster import RealCluster
from rmq_protocol.message import MessageQueue

from ..client.support import until
from ..consumer.support import collect, each, offsets_by_queue, put


@asynccontextmanager
async def topic_on(
    cluster: RealCluster, *, queues: int = 4, serialize_type: str = "json"
) -> AsyncIterator[tuple[str, Admin, PullConsumer]]:
    """A new topic, an admin and a consumer. The admin waits for one more registration of all topics, which a broker makes each
    30 s: one that is under way may overtake that of a change, and then name servers have the old settings until the next."""
    topic = f"Consumer_{uuid.uuid4().hex}"
    config = ClientConfig(namesrv=cluster.namesrv, serialize_type=serialize_type)
    patient = replace(config, request_timeout=70.0)
    async with Admin(client=patient) as admin, PullConsumer("G", client=config) as consumer:
        await admin.create_topic(topic, queues=queues)
        yield topic, admin, consumer


@pytest.mark.parametrize("serialize_type", ["json", "rocketmq"])
async def test_everything_stored_is_read_in_order(each_cluster: RealCluster, serialize_type: str) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    async with topic_on(each_cluster, serialize_type=serialize_type) as (topic, admin, consumer):
        expected: dict[MessageQueue, list[bytes]] = {}
        for queue in await consumer.queues(topic):
            expected[queue] = [os.urandom(chance.randrange(1, 3000)) for _ in range(chance.randrange(0, 250))]
        await asyncio.gather(*[put(admin, queue, bodies, tags="red") for queue, bodies in expected.items()])
        found: dict[MessageQueue, list[bytes]] = {queue: [] for queue in expected}
        async for message in consumer.read(topic):
            assert message.queue_offset == len(found[message.queue])
            assert (message.topic, message.tags) == (topic, "red")
            found[message.queue].append(message.body)
        assert found == expected


async def test_what_is_acknowledged_is_read_at_once(each_cluster: RealCluster) -> None:
    """The broker acknowledges before it makes a message readable; the end of a reading must not be too early."""
    async with topic_on(each_cluster, queues=1) as (topic, admin, consumer):
        queue = (await consumer.queues(topic))[0]
        behind = 0
        for count in range(1, 51):
            await put(admin, queue, [b"x"])
            behind += await admin.max_offset(queue) < count
        for count in range(51, 76):
            await put(admin, queue, [b"x"])
            assert len(await collect(consumer.read(topic, start={queue: count - 1}))) == 1
        print("a plain maximum offset was behind in", behind, "of 50 cases")


async def test_a_pull_that_waits_ends_with_the_message_or_in_time(each_cluster: RealCluster) -> None:
    async with topic_on(each_cluster, queues=1) as (topic, admin, consumer):
        queue = (await consumer.queues(topic))[0]
        await put(admin, queue, [b"first"])
        await collect(consumer.read(topic))
        for wait in (0.2, 1.5):
            start = monotonic()
            result = await consumer.pull(queue, 1, wait=wait)
            assert (result.status, result.next_offset) == (PullStatus.NO_NEW, 1)
            assert wait - 0.05 < monotonic() - start < wait + 0.4
        waiting = asyncio.ensure_future(consumer.pull(queue, 1, wait=10.0))
        await asyncio.sleep(0.3)
        start = monotonic()
        await put(admin, queue, [b"second"])
        assert [message.body for message in (await waiting).messages] == [b"second"]
        assert monotonic() - start < 1.0


async def test_the_edges_of_a_queue(each_cluster: RealCluster) -> None:
    async with topic_on(each_cluster, queues=2) as (topic, admin, consumer):
        queue, empty = await consumer.queues(topic)
        await put(admin, queue, [b"1", b"2", b"3"])
        await collect(consumer.read(topic))
        assert (await consumer.pull(empty, 0)).status is PullStatus.NO_NEW
        assert (await consumer.pull(empty, 7)).status is PullStatus.OFFSET_ILLEGAL
        assert (await consumer.pull(queue, 3)).status is PullStatus.NO_NEW
        above = await consumer.pull(queue, 9)
        assert (above.status, above.min_offset, above.max_offset) == (PullStatus.OFFSET_ILLEGAL, 0, 3)
        with pytest.raises(OffsetRangeError):
            await collect(consumer.read(topic, start={queue: 9}))
        with pytest.raises(OffsetRangeError):
            await collect(consumer.read(topic, start={queue: 9}, end=None))
        with pytest.raises(BrokerError):
            await consumer.pull(queue._replace(queue_id=99), 0)
        with pytest.raises(TopicNotFoundError):
            await consumer.queues(topic + "_")
        assert (await admin.min_offset(queue), await admin.max_offset(queue)) == (0, 3)
        assert offsets_by_queue(await collect(consumer.read(topic, start={queue: 1}, end={queue: 2}))) == {queue.queue_id: [1]}


async def test_tags_are_filtered(each_cluster: RealCluster) -> None:
    async with topic_on(each_cluster, queues=1) as (topic, admin, consumer):
        queue = (await consumer.queues(topic))[0]
        for number in range(60):
            await put(admin, queue, [b"%d" % number], tags=("Aa", "BB", "C")[number % 3])
        found = await collect(consumer.read(topic, tags="Aa || C"))
        assert [int(message.body) for message in found] == [number for number in range(60) if number % 3 != 1]
        assert await collect(consumer.read(topic, tags="none")) == []
        result = await consumer.pull(queue, 0, tags="none")
        assert (result.status, result.next_offset) == (PullStatus.NO_MATCH, 60)


async def test_committed_offsets_and_times(each_cluster: RealCluster) -> None:
    async with topic_on(each_cluster, queues=1) as (topic, admin, consumer):
        queue = (await consumer.queues(topic))[0]
        await put(admin, queue, [b"1", b"2"])
        await asyncio.sleep(0.02)
        between = datetime.now(UTC)
        await asyncio.sleep(0.02)
        await put(admin, queue, [b"3"])
        await collect(consumer.read(topic))
        assert await consumer.committed(queue) is None
        await consumer.commit(queue, 2)
        assert await consumer.committed(queue) == 2
        async with PullConsumer("H", client=consumer.config) as stranger:
            assert await stranger.committed(queue) is None
            await stranger.commit(queue, 0)
            assert await stranger.committed(queue) == 0
        assert await consumer.search_offset(queue, between) == 2
        assert await admin.search_offset(queue, between, upper=True) == 1
        stored = (await consumer.pull(queue, 0)).messages[0].store_time_ms
        assert await admin.earliest_store_time_ms(queue) == stored


async def test_following_takes_up_messages_and_queues_that_come_later(each_cluster: RealCluster) -> None:
    async with topic_on(each_cluster, queues=1) as (topic, admin, consumer):
        await put(admin, (await consumer.queues(topic))[0], [b"old"])
        found: list[bytes] = []
        following = asyncio.ensure_future(
            each(consumer.read(topic, start="latest", end=None), lambda message: found.append(message.body))
        )
        start = monotonic()
        while not found:  # then it follows
            assert monotonic() - start < 5.0
            await put(admin, (await consumer.queues(topic))[0], [b"probe"])
            await asyncio.sleep(0.05)
        await put(admin, (await consumer.queues(topic))[0], [b"new"])
        await admin.create_topic(topic, queues=2)
        await put(admin, (await consumer.queues(topic))[1], [b"other"])
        start = monotonic()
        while sorted({*found} - {b"probe"}) != [b"new", b"other"]:
            assert monotonic() - start < 3.0, found
            await asyncio.sleep(0.01)
        assert found.count(b"new") == found.count(b"other") == 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize("away", [{"perm": 2}, {"queues": 2, "read_queues": 1}], ids=["unreadable", "fewer"])
async def test_a_queue_that_is_away_for_a_while_goes_on(
    each_cluster: RealCluster, away: dict[str, int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll of the routes is minutes away, so the reader learns from the broker's refusal that the queue has left."""
    monkeypatch.setattr(reading_module, "FOLLOW_SUSPEND", 1.0)  # held pulls are refused when they end
    caplog.set_level(logging.INFO)
    config = ClientConfig(namesrv=each_cluster.namesrv, route_poll_interval=600.0)
    async with topic_on(each_cluster, queues=2) as (topic, admin, _), PullConsumer("F", client=config) as consumer:
        queues = await consumer.queues(topic)
        found: list[tuple[int, int]] = []
        reading = consumer.read(topic, end=None)
        task = asyncio.ensure_future(each(reading, lambda item: found.append((item.queue.queue_id, item.queue_offset))))
        for begin in (0, 3):
            for queue in queues:
                await put(admin, queue, [b"x"] * 3)
            await until(lambda begin=begin: len(found) == 2 * (begin + 3))
            if begin == 0:
                await admin.create_topic(topic, **({"queues": 2} | away))
                # 4.9 refuses a queue above the number with an error that may pass: it is asked for until the poll of the routes.
                refusals = (f"queue {queues[1]} is no longer in its topic's route", "queueId[1] is illegal")
                await until(lambda refusals=refusals: any(text in caplog.text for text in refusals), 40)
                await admin.create_topic(topic, queues=2)
                await consumer.queues(topic)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert sorted(found) == [(queue, offset) for queue in (0, 1) for offset in range(6)]
