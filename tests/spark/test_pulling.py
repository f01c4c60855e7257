"""Ranges of queues through a ``Puller``, without Spark, from brokers in memory: order, gaps, tags, losses, memory, early ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from rmq_async import CorruptMessageError, Message, MessageQueue, OffsetRangeError, Producer, RequestTimeoutError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import FrameTooLargeError
from rmq_async.spark import pulling
from rmq_async.spark.arrow import BYTES, Rows
from rmq_async.spark.options import read_options
from rmq_async.spark.planning import Range
from rmq_async.spark.pulling import Puller
from rmq_async.spark.worker import Worker
from rmq_protocol.columns import QUEUE_OFFSET
from rmq_protocol.constants import RequestCode, ResponseCode
from rmq_protocol.continuity import ranges_text
from rmq_protocol.headers import PullMessageRequestHeader

from ..consumer.support import record
from ..embedded.inside import broker_of
from ..support.fakes import NameServer, OnPull, PullBroker, route
from .conftest import Loop, Topics

BROKER = "broker-a"


@pytest.fixture(scope="module")
def here() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def fill(topics: Topics, topic: str, queue_id: int, count: int, *, tags: tuple[str, ...] = (), body: bytes = b"") -> None:
    """``tags``: of the messages, in turn."""

    async def send() -> None:
        async with Producer("fills", namesrv=topics.namesrv) as producer:
            for start in range(0, count, 64):
                messages = [
                    Message(topic, b"%d" % number + body, tags=tags[number % len(tags)] if tags else None)
                    for number in range(start, min(start + 64, count))
                ]
                await producer.send_batch(messages, queue=MessageQueue(topic, BROKER, queue_id))

    topics.loop.run(send())


def puller(here: Worker, namesrv: str, ranges: list[Range], **options: Any) -> Puller:
    given = {"nameserver": namesrv, "topic": ranges[0].topic, **{name: str(value) for name, value in options.items()}}
    chosen = read_options(given, streaming=False)
    return Puller(here, here.reader(chosen.access, chosen.group), ranges, chosen)


def found(batches: Iterator[Rows]) -> list[tuple[int, int]]:
    """Queue and offset of every row, in order."""
    pairs: list[tuple[int, int]] = []
    for rows in batches:
        start = 0
        for queue, end in rows.runs:
            pairs += [(queue.queue_id, offset) for offset in rows.stored.int64(QUEUE_OFFSET)[start:end]]
            start = end
        assert start == len(rows)
    return pairs


def by_queue(pairs: list[tuple[int, int]]) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for queue_id, offset in pairs:
        offsets.setdefault(queue_id, []).append(offset)
    return offsets


@pytest.mark.parametrize("size", [32, 1024, 7])
def test_each_queue_in_order_and_nothing_outside_the_ranges(here: Worker, embedded_topics: Topics, size: int) -> None:
    topic = embedded_topics.make(2)
    fill(embedded_topics, topic, 0, 700)
    fill(embedded_topics, topic, 1, 300)
    ranges = [Range(topic, BROKER, 0, 5, 699), Range(topic, BROKER, 1, 0, 300), Range(topic, BROKER, 0, 2, 4)]
    pairs = found(puller(here, embedded_topics.namesrv, ranges, pullBatchSize=size).batches())
    assert by_queue(pairs)[1] == list(range(300))
    offsets = by_queue(pairs)[0]
    assert [offset for offset in offsets if offset > 4] == list(range(5, 699))
    assert [offset for offset in offsets if offset <= 4] == [2, 3]


@pytest.mark.parametrize("tags", ["*", "b"])
def test_messages_of_a_namespace_are_read(here: Worker, embedded_topics: Topics, tags: str) -> None:
    """Their records carry the name on the wire, ranges the one that users know."""
    topic = embedded_topics.make(1)
    embedded_topics.make(1, name=f"eu%{topic}")
    fill(embedded_topics, topic, 0, 5)
    fill(embedded_topics, f"eu%{topic}", 0, 100, tags=("a", "b"))
    rows = list(puller(here, embedded_topics.namesrv, [Range(topic, BROKER, 0, 3, 98)], tags=tags, namespace="eu").batches())
    assert found(iter(rows)) == [(0, offset) for offset in range(3, 98) if tags == "*" or offset % 2]
    assert {queue.topic for batch in rows for queue, _ in batch.runs} == {topic}


def test_tags_that_match_one_in_a_hundred(here: Worker, embedded_topics: Topics) -> None:
    topic = embedded_topics.make(1)
    fill(embedded_topics, topic, 0, 5000, tags=("rare", *["often"] * 99))
    whole = [Range(topic, BROKER, 0, 0, 5000)]
    namesrv = embedded_topics.namesrv
    assert found(puller(here, namesrv, whole, tags="rare").batches()) == [(0, offset) for offset in range(0, 5000, 100)]
    assert found(puller(here, namesrv, whole, tags="none").batches()) == []
    part = [Range(topic, BROKER, 0, 100, 4901)]
    assert len(found(puller(here, namesrv, part, tags="rare || often").batches())) == 4801


def test_large_bodies_make_small_batches_and_few_answers_wait(
    here: Worker, embedded_topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = embedded_topics.make(1)
    body = bytes(1 << 20)
    fill(embedded_topics, topic, 0, 1)

    async def send() -> None:
        async with Producer("fills", namesrv=embedded_topics.namesrv) as producer:
            for _ in range(40):
                await producer.send_batch([Message(topic, body)], queue=MessageQueue(topic, BROKER, 0))

    embedded_topics.loop.run(send())
    monkeypatch.setattr(pulling, "WAITING_BYTES", 2 << 20)
    pulled = puller(here, embedded_topics.namesrv, [Range(topic, BROKER, 0, 0, 41)])
    sizes = []
    total = 0
    for rows in pulled.batches():
        sizes.append(rows.stored.size)
        total += len(rows)
        time.sleep(0.05)
        assert pulled.waiting <= (2 + 16) << 20
    assert total == 41
    assert max(sizes) <= BYTES + (1 << 20)
    assert len(sizes) >= 2


def test_deleted_messages_fail_the_read_or_are_left_out(here: Worker, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    servers = EmbeddedRocketMQ(max_memory=200_000)
    loop.run(servers.start())
    try:
        topics = Topics(loop, servers.namesrv)
        topic = topics.make(1)
        fill(topics, topic, 0, 1000, body=bytes(800))
        whole = [Range(topic, BROKER, 0, 0, 1000)]
        with pytest.raises(OffsetRangeError, match=f"{topic}/broker-a/0: messages were deleted.*failOnDataLoss=false"):
            found(puller(here, servers.namesrv, whole).batches())
        caplog.set_level(logging.WARNING)
        pairs = found(puller(here, servers.namesrv, whole, failOnDataLoss="false").batches())
        first = pairs[0][1]
        assert 0 < first < 1000
        assert pairs == [(0, offset) for offset in range(first, 1000)]
        assert "data is lost, the query continues" in caplog.text
    finally:
        loop.run(servers.stop())


@pytest.fixture
def forgetful(loop: Loop) -> Iterator[tuple[EmbeddedRocketMQ, str]]:
    """A broker, and a topic of 3000 messages of which one in ten is tagged "rare"."""
    servers = EmbeddedRocketMQ()
    loop.run(servers.start())
    try:
        topics = Topics(loop, servers.namesrv)
        topic = topics.make(1)
        fill(topics, topic, 0, 3000, tags=("rare", *["often"] * 9))
        yield servers, topic
    finally:
        loop.run(servers.stop())


@pytest.mark.parametrize("tags", ["*", "rare"])
@pytest.mark.parametrize(("start", "before"), [(0, 20), (0, 1700), (500, 860), (1696, 1700)])
def test_a_task_names_what_is_deleted_meanwhile(
    here: Worker, forgetful: tuple[EmbeddedRocketMQ, str], caplog: pytest.LogCaptureFixture, tags: str, start: int, before: int
) -> None:
    """The broker's minimum offset says that all is there."""
    servers, topic = forgetful
    servers.expire(MessageQueue(topic, BROKER, 0), before)
    whole = [Range(topic, BROKER, 0, start, 3000)]
    with pytest.raises(OffsetRangeError, match=rf"{topic}/broker-a/0: messages were deleted .*\({start} to \d+") as caught:
        found(puller(here, servers.namesrv, whole, tags=tags).batches())
    assert caught.value.lost == (range(start, before),)
    assert ranges_text(caught.value.lost) in str(caught.value)
    caplog.set_level(logging.WARNING)
    pairs = found(puller(here, servers.namesrv, whole, tags=tags, failOnDataLoss="false").batches())
    assert pairs == [(0, offset) for offset in range(before, 3000) if tags == "*" or offset % 10 == 0]
    lost = {text for text in caplog.messages if "data is lost, the query continues" in text}
    assert any(f"({start} to" in text for text in lost)
    assert any(f"to {before - 1})" in text for text in lost)
    caplog.clear()
    assert found(puller(here, servers.namesrv, [whole[0]._replace(start=before)], tags=tags).batches()) == pairs
    assert "data is lost" not in caplog.text


@contextmanager
def scripted(loop: Loop, pull: OnPull, low: int = 0, high: int = 100) -> Iterator[str]:
    """A name server whose topic "t" has one queue, on a broker that answers with ``pull``."""

    async def serve() -> tuple[AsyncExitStack, str]:
        stack = AsyncExitStack()
        broker = await stack.enter_async_context(PullBroker(pull))
        broker.low, broker.high = low, high
        names = await stack.enter_async_context(NameServer(t=route(broker.address, queues=1)))
        return stack, names.address

    stack, namesrv = loop.run(serve())
    try:
        yield namesrv
    finally:
        loop.run(stack.aclose())


@pytest.mark.parametrize("tags", ["*", "a"])
@pytest.mark.parametrize(
    "stranger", [record(5, queue_id=1), record(70, topic="t"), record(0, topic="other", body=bytes(500))[:300], b""]
)
def test_a_task_passes_by_what_is_in_the_place_of_a_deleted_message(
    here: Worker, loop: Loop, caplog: pytest.LogCaptureFixture, stranger: bytes, tags: str
) -> None:
    """What 5.5.0 gives for the very first message of its log while the first file is deleted; the rest may be cut up, too."""
    tagged = b"TAGS\x01a\x02"

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        first = max(header.queueOffset, 65)
        block = b"".join(record(offset, properties=tagged) for offset in range(first, min(first + 16, 100)))
        return 0, min(first + 16, 100), (stranger if header.queueOffset == 0 else b"") + block

    with scripted(loop, pull) as namesrv:
        whole = [Range("t", BROKER, 0, 0, 100)]
        with pytest.raises(OffsetRangeError, match=r"t/broker-a/0: messages were deleted .*\(0 to 64\)") as caught:
            found(puller(here, namesrv, whole, tags=tags).batches())
        assert caught.value.lost == (range(65),)
        caplog.set_level(logging.WARNING)
        pairs = found(puller(here, namesrv, whole, tags=tags, failOnDataLoss="false").batches())
        assert pairs == [(0, offset) for offset in range(65, 100)]
        assert "(0 to 64)" in caplog.text


@pytest.mark.parametrize(
    ("form", "tags"),
    [*product(["steps", "stranger and steps", "minimum too low"], ["*", "a"]), ("end of an answer", "*")],
)
def test_a_task_names_all_that_is_lost_where_each_answer_shows_a_part(
    here: Worker, loop: Loop, caplog: pytest.LogCaptureFixture, form: str, tags: str
) -> None:
    """Offsets up to 4999 of 6000 are gone, but for the first 10 where an answer shows only its own end to be missing."""
    tagged = b"TAGS\x01a\x02"
    start = 10 if form == "end of an answer" else 0
    asked: list[int] = []

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        at = header.queueOffset
        asked.append(at)
        if at >= 5000:
            last = min(at + header.maxMsgNums, 6000)
            return ResponseCode.SUCCESS, last, b"".join(record(offset, properties=tagged) for offset in range(at, last))
        if at < start:
            held = b"".join(record(offset, properties=tagged) for offset in range(at, start))
            return ResponseCode.SUCCESS, at + 32, held
        if form == "minimum too low" and at < 300:
            return ResponseCode.PULL_OFFSET_MOVED, 300, b""
        if form == "stranger and steps" and at == 0:
            return ResponseCode.SUCCESS, 32, record(5, queue_id=1)
        return ResponseCode.PULL_RETRY_IMMEDIATELY, min(at + 800, 5000), b""

    with scripted(loop, pull, low=300 if form == "minimum too low" else 0, high=6000) as namesrv:
        whole = [Range("t", BROKER, 0, 0, 6000)]
        with pytest.raises(OffsetRangeError, match=rf"t/broker-a/0: messages were deleted .*\({start} to 4999\)") as caught:
            found(puller(here, namesrv, whole, tags=tags).batches())
        assert caught.value.lost == (range(start, 5000),)
        assert caught.value.min_offset == 5000
        asked.clear()
        caplog.set_level(logging.WARNING)
        pairs = found(puller(here, namesrv, whole, tags=tags, failOnDataLoss="false").batches())
        assert pairs == [(0, offset) for offset in (*range(start), *range(5000, 6000))]
        lost = [text for text in caplog.messages if "data is lost, the query continues" in text]
        assert any(f"({start} to 4999)" in text for text in lost)
        assert len(lost) <= 4  # chunks that are pulled at once may report it from their own beginning
        assert len(asked) < 6000 / 32 * 2  # no chunk goes through all of it again


def test_a_range_below_the_minimum_is_lost_as_a_whole(here: Worker, loop: Loop) -> None:
    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        return ResponseCode.PULL_OFFSET_MOVED, 300, b""

    with scripted(loop, pull, low=300, high=6000) as namesrv:
        with pytest.raises(OffsetRangeError, match=r"\(5 to 99\).* available are 300 to 6000") as caught:
            found(puller(here, namesrv, [Range("t", BROKER, 0, 5, 100)]).batches())
        assert (caught.value.lost, caught.value.min_offset) == ((range(5, 100),), 300)
        assert found(puller(here, namesrv, [Range("t", BROKER, 0, 5, 100)], failOnDataLoss="false").batches()) == []


def test_a_task_with_tags_asks_little_more(here: Worker, forgetful: tuple[EmbeddedRocketMQ, str]) -> None:
    servers, topic = forgetful
    before = servers.requests[RequestCode.PULL_MESSAGE]
    assert found(puller(here, servers.namesrv, [Range(topic, BROKER, 0, 0, 3000)], tags="none").batches()) == []
    assert servers.requests[RequestCode.PULL_MESSAGE] - before <= 4 + 4  # 800 offsets each, of two chunks; their checks
    assert servers.requests[RequestCode.GET_TOPIC_CONFIG] == 0


def test_an_end_beyond_the_queue(here: Worker, embedded_topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "ILLEGAL_PATIENCE", 0.1)
    topic = embedded_topics.make(1)
    fill(embedded_topics, topic, 0, 10)
    with pytest.raises(OffsetRangeError, match="beyond the last message"):
        found(puller(here, embedded_topics.namesrv, [Range(topic, BROKER, 0, 12, 20)]).batches())
    with pytest.raises(
        RequestTimeoutError,
        match=r"returned nothing at offset 10 .* be read to offset 20; .* wait longer \(option pullTimeoutMs\)",
    ):
        found(puller(here, embedded_topics.namesrv, [Range(topic, BROKER, 0, 0, 20)], pullTimeoutMs=200).batches())


def test_a_broker_that_is_away_for_a_while_is_waited_for(here: Worker, loop: Loop) -> None:
    servers = EmbeddedRocketMQ()
    loop.run(servers.start())
    try:
        topics = Topics(loop, servers.namesrv)
        topic = topics.make(1)
        fill(topics, topic, 0, 2000)
        batches = puller(here, servers.namesrv, [Range(topic, BROKER, 0, 0, 2000)], requestTimeoutMs=500).batches()

        async def restart() -> None:
            await servers.stop()
            await asyncio.sleep(0.5)
            await servers.start()

        restarting = loop.start(restart())
        assert found(batches) == [(0, offset) for offset in range(2000)]
        restarting.result(60)
    finally:
        loop.run(servers.stop())


def test_leaving_early_ends_the_pulls(here: Worker, embedded_topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.spark.arrow.ROWS", 10)
    topic = embedded_topics.make(1)
    fill(embedded_topics, topic, 0, 1000)
    with closing(puller(here, embedded_topics.namesrv, [Range(topic, BROKER, 0, 0, 1000)]).batches()) as batches:
        assert len(next(batches)) >= 10
        assert len(next(batches)) >= 10

    async def left() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async spark " + topic)]

    deadline = time.monotonic() + 60
    while here.run(left()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert here.run(left()) == []


def _records(servers: EmbeddedRocketMQ, topic: str) -> list[bytes]:
    queue = broker_of(servers).state.topics.find_queue(topic, 0)
    assert queue is not None
    return queue._records  # noqa: SLF001


def test_answers_above_max_frame_size_are_pulled_by_fewer_and_a_single_one_is_named(here: Worker, loop: Loop) -> None:
    large = bytes(17 * 1024 * 1024)

    def pull(header: PullMessageRequestHeader) -> tuple[int, int, bytes]:
        offset = header.queueOffset
        end = min(offset + header.maxMsgNums, 100)
        if header.maxMsgNums > 8 or offset <= 90 < end:
            return 0, end, large
        return 0, end, b"".join(map(record, range(offset, end)))

    with scripted(loop, pull) as namesrv:
        pairs = found(puller(here, namesrv, [Range("t", BROKER, 0, 0, 90)]).batches())
        assert pairs == [(0, offset) for offset in range(90)]
        with pytest.raises(FrameTooLargeError, match="message at offset 90 of"):
            found(puller(here, namesrv, [Range("t", BROKER, 0, 80, 100)], failOnDataLoss="false").batches())


def test_damaged_records(here: Worker, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    servers = EmbeddedRocketMQ()
    loop.run(servers.start())
    try:
        topics = Topics(loop, servers.namesrv)
        topic = topics.make(1)
        fill(topics, topic, 0, 100)
        records = _records(servers, topic)
        damaged = bytearray(records[50])
        damaged[88] ^= 1
        records[50] = bytes(damaged)
        whole = [Range(topic, BROKER, 0, 0, 100)]
        with pytest.raises(CorruptMessageError, match="CRC") as caught:
            found(puller(here, servers.namesrv, whole).batches())
        assert (caught.value.queue_offset, caught.value.broker) == (50, BROKER)
        caplog.set_level(logging.WARNING)
        pairs = found(puller(here, servers.namesrv, whole, failOnDataLoss="false").batches())
        assert pairs == [(0, offset) for offset in range(100) if offset != 50]
        assert caplog.text.count("a damaged message is left out") == 1
        assert len(found(puller(here, servers.namesrv, [whole[0]._replace(end=50)]).batches())) == 50
    finally:
        loop.run(servers.stop())


READS = """
import sys
from pathlib import Path
from rmq_async.spark.arrow import record_batches
from rmq_async.spark.options import read_options
from rmq_async.spark.planning import Range
from rmq_async.spark.pulling import Puller
from rmq_async.spark.worker import worker

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))

namesrv, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = read_options({"nameserver": namesrv, "topic": topic}, streaming=False)
here = worker()
puller = Puller(here, here.reader(options.access, options.group), [Range(topic, "broker-a", 0, 0, count)], options)
before = peak()
print(sum(batch.num_rows for batch in record_batches(puller.batches(), options.columns)), peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is looked at in /proc")
def test_memory_is_bounded_by_whole_messages(embedded_topics: Topics) -> None:
    """6,000 messages of a property of 15,000 bytes each, 86 MiB: a process that reads them grows by far less."""
    topic, count = embedded_topics.make(1), 6000

    async def send() -> None:
        message = Message(topic, b"0123456789", properties={"baggage": "x" * 15_000})
        async with Producer("fills", namesrv=embedded_topics.namesrv) as producer:
            for _ in range(count // 100):
                await producer.send_batch([message] * 100, queue=MessageQueue(topic, BROKER, 0))

    embedded_topics.loop.run(send())
    command = [sys.executable, "-c", READS, embedded_topics.namesrv, topic, str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    rows, grown = map(int, output.split())
    print(f"grown by {grown} MiB")
    assert rows == count
    assert grown < 120
