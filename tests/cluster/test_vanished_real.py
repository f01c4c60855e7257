"""What real brokers answer while they delete messages, and where offsets are missing by right.

A broker looks for files to delete from 60 s after its start on, so the deletions wait for that, in two clusters at the same time.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from rmq_async import (
    Admin,
    Message,
    MessageExt,
    MessageQueue,
    OffsetRangeError,
    Producer,
    PullConsumer,
    PullStatus,
    TopicNotFoundError,
    run,
)
from rmq_async.spark.options import read_options
from rmq_async.spark.planning import Range
from rmq_async.spark.pulling import Puller
from rmq_async.spark.worker import Worker
from rmq_async.testing._probe import ask
from rmq_async.testing.cluster import ExternalCluster, RealCluster
from rmq_protocol.columns import QUEUE_OFFSET
from rmq_protocol.constants import RequestCode
from rmq_protocol.headers import CreateTopicRequestHeader, to_ext

BROKER = "broker-a"
BODY = os.urandom(16 * 1024)
COUNT = 4800
"""75 MiB: more than two files."""
STEP = 300
"""A pull without tags looks at 800 offsets: from some of these starts it finds what is left, from others nothing."""
READ = 64
PATIENCE = 120.0


async def configure(address: str, text: str) -> None:
    answer = await ask(address, RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
    assert answer is not None
    assert answer.code == 0, answer.remark


@asynccontextmanager
async def deleting(address: str) -> AsyncIterator[None]:
    """The broker deletes all files but the last, from its next look at them on."""
    await configure(address, "fileReservedTime=0\n")
    try:
        answer = await ask(address, RequestCode.DELETE_EXPIRED_COMMITLOG, {})
        assert answer is not None
        assert answer.code == 0, answer.remark
        yield
    finally:
        await configure(address, "fileReservedTime=72\n")


async def fill(namesrv: str, queue: MessageQueue) -> None:
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(queue.topic, queues=1)
    async with Producer("fills", namesrv=namesrv, timeout=20) as producer:
        for start in range(0, COUNT, 100):
            messages = [
                Message(queue.topic, BODY, tags="odd" if number % 2 else "even") for number in range(start, start + 100)
            ]
            await producer.send_batch(messages, queue=queue)


class Seen:
    """What pulls and readings met. ``short``: kinds of answers that left something out, with the queue's minimum before it."""

    def __init__(self, consumer: PullConsumer, namesrv: str, queue: MessageQueue) -> None:
        self.namesrv = namesrv
        self.consumer = consumer
        self.queue = queue
        self.short: set[PullStatus] = set()
        self.raised: set[str] = set()

    async def pull(self, start: int) -> int:
        """Each offset is there, or named; the minimum offset that the broker gave."""
        result = await self.consumer.pull(self.queue, start)
        offsets = {message.queue_offset for message in result.messages}
        lost = {offset for part in result.lost for offset in part}
        assert offsets | lost == set(range(start, result.next_offset))
        assert not offsets & lost
        if result.lost and result.status is not PullStatus.OFFSET_ILLEGAL:
            assert result.min_offset <= start
            self.short.add(result.status)
        return result.min_offset

    async def read(self, start: int, tags: str) -> None:
        """All of it, or an error that names the rest."""
        offsets: list[int] = []
        end = {self.queue: start + READ}
        messages = self.consumer.read(self.queue.topic, start={self.queue: start}, end=end, tags=tags)
        try:
            await each(messages, lambda message: offsets.append(message.queue_offset))
        except OffsetRangeError as error:
            await self.judge(f"read {tags}", start, tags, offsets, error)
        else:
            await self.judge(f"read {tags}", start, tags, offsets)

    async def run_task(self, here: Worker, start: int, tags: str) -> None:
        """The same for a task of Spark."""
        given = read_options({"nameserver": self.namesrv, "topic": self.queue.topic, "tags": tags}, streaming=False)
        ranges = [Range(self.queue.topic, BROKER, 0, start, start + READ)]
        offsets: list[int] = []

        def work() -> None:
            for rows in Puller(here, here.reader(given.access, given.group), ranges, given).batches():
                offsets.extend(rows.stored.int64(QUEUE_OFFSET))

        try:
            await asyncio.to_thread(work)
        except OffsetRangeError as error:
            await self.judge(f"task {tags}", start, tags, offsets, error)
        else:
            await self.judge(f"task {tags}", start, tags, offsets)

    async def judge(self, what: str, start: int, tags: str, offsets: list[int], error: OffsetRangeError | None = None) -> None:
        """Notes an error that comes while the broker's minimum offset still says that all is there."""
        if error is None:
            assert offsets == [offset for offset in range(start, start + READ) if tags == "*" or offset % 2]
            return
        assert "deleted before they were read" in str(error) or "is outside" in str(error)
        lost = {offset for part in error.lost for offset in part}
        assert lost
        assert not lost & set(offsets)
        assert lost <= set(range(start, start + READ))
        if await self.consumer.min_offset(self.queue) <= start:
            self.raised.add(what)


async def each(messages: AsyncIterator[MessageExt], call: Callable[[MessageExt], object]) -> None:
    async for message in messages:
        call(message)


async def watch(seen: Seen, here: Worker) -> None:
    """Until the broker has corrected the queue's minimum offset."""
    deadline = time.monotonic() + PATIENCE
    low = 0
    while not low:
        assert time.monotonic() < deadline, "nothing was deleted"
        if not (await seen.consumer.pull(seen.queue, READ)).lost:
            await asyncio.sleep(0.05)
            continue
        for start in range(0, COUNT - READ, STEP):
            low = max(low, await seen.pull(start))
        assert 0 <= await seen.consumer.search_offset(seen.queue, 1) <= COUNT  # as well as the broker knows times now
        for tags in ("*", "odd"):
            await seen.read(READ, tags)
            await seen.run_task(here, READ, tags)


def test_a_compacted_topic_has_no_losses(cluster: RealCluster | ExternalCluster) -> None:
    async def main() -> None:
        topic = f"compacted-{uuid.uuid4().hex[:12]}"
        queue = MessageQueue(topic, BROKER, 0)
        async with (
            Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin,
            Producer("keeps", namesrv=cluster.namesrv) as producer,
            PullConsumer("keeps", namesrv=cluster.namesrv) as consumer,
        ):
            await admin.create_topic(topic, queues=1, broker=BROKER, attributes={"cleanup.policy": "COMPACTION"})
            for number in range(2000):
                await producer.send(Message(topic, bytes(200), keys=f"key-{number % 7}"), queue=queue)
            deadline = time.monotonic() + PATIENCE
            while True:
                before = await found(consumer, queue)
                read = [message.queue_offset async for message in consumer.read(topic, start={queue: 0}, end={queue: 2000})]
                if before == await found(consumer, queue) and len(before) not in (0, 2000):
                    break
                assert time.monotonic() < deadline, "it was not compacted"
                await asyncio.sleep(0.5)
            print(f"{len(before)} of 2000 are left")
            assert read == before

    run(main())


async def found(consumer: PullConsumer, queue: MessageQueue) -> Sequence[int]:
    """Offsets of all messages; nothing is lost on the way."""
    offsets: list[int] = []
    at = 0
    while (result := await consumer.pull(queue, at)).status is PullStatus.FOUND:
        assert result.lost == ()
        offsets += [message.queue_offset for message in result.messages]
        at = result.next_offset
    return offsets


def test_a_remapped_queue_has_no_losses(cluster: RealCluster | ExternalCluster) -> None:
    """Of a static topic: its first ten offsets lie in one queue of the broker, those from 10,000 on in another one."""

    async def main() -> None:
        topic = f"remapped-{uuid.uuid4().hex[:12]}"
        address = cluster.brokers[0].address
        first = {"gen": 0, "queueId": 0, "bname": BROKER, "logicOffset": 0, "startOffset": 0, "endOffset": -1}
        second = {"gen": 1, "queueId": 1, "bname": BROKER, "logicOffset": 10_000, "startOffset": 0, "endOffset": -1}
        await put_mapping(address, topic, [first])
        async with (
            Producer("maps", namesrv=cluster.namesrv) as producer,
            PullConsumer("maps", namesrv=cluster.namesrv) as consumer,
        ):
            async with asyncio.timeout(20):
                while not (queues := await queues_of(consumer, topic)):
                    await asyncio.sleep(0.1)
            for _ in range(10):
                await producer.send(Message(topic, b"old"))
            await put_mapping(address, topic, [first | {"endOffset": 10}, second])
            assert [(await producer.send(Message(topic, b"new"))).queue_offset for _ in range(5)] == [*range(10_000, 10_005)]
            offsets = [*range(10), *range(10_000, 10_005)]
            assert [message.queue_offset async for message in consumer.read(topic, start=dict.fromkeys(queues, 0))] == offsets
            skipped = await consumer.pull(queues[0], 10)
            assert (skipped.status, skipped.next_offset, skipped.lost) == (PullStatus.NO_MATCH, 10_000, ())

    run(main())


async def put_mapping(address: str, topic: str, items: Sequence[dict[str, object]]) -> None:
    detail = {
        "topic": topic, "scope": "__global__", "totalQueues": 1, "bname": BROKER, "epoch": time.time_ns() // 10**6, "dirty": False,
        "hostedQueues": {"0": [item | {"timeOfStart": -1, "timeOfEnd": -1} for item in items]},
    }  # fmt: skip
    header = CreateTopicRequestHeader(
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=2,
        writeQueueNums=2,
        perm=6,
        topicFilterType="SINGLE_TAG",
        force=True,
    )
    code = RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC
    answer = await ask(address, code, {**to_ext(header)}, json.dumps(detail).encode())
    assert answer is not None
    assert answer.code == 0, answer.remark


async def queues_of(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    try:
        return await consumer.queues(topic)
    except TopicNotFoundError:
        return ()


def test_a_deletion_under_a_reader_is_named(each_fresh_cluster: RealCluster) -> None:
    cluster, here = each_fresh_cluster, Worker()

    async def main() -> None:
        namesrv, address = cluster.namesrv, cluster.brokers[0].address
        async with PullConsumer("watches", namesrv=namesrv) as consumer:
            short: set[PullStatus] = set()
            raised: set[str] = set()
            for _ in range(8):  # the time between deleting and correcting is at most 3 s, and may be none
                queue = MessageQueue(f"vanishes-{uuid.uuid4().hex[:12]}", BROKER, 0)
                await fill(namesrv, queue)
                seen = Seen(consumer, namesrv, queue)
                async with deleting(address):
                    await watch(seen, here)
                print(f"short answers: {seen.short}, errors: {seen.raised}")
                short |= seen.short
                raised |= seen.raised
                if short and {"read *", "read odd", "task *", "task odd"} <= raised:
                    return
            pytest.fail("no deletion was met")

    try:
        run(main())
    finally:
        here.close()
