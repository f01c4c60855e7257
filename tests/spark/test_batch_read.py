"""Batch reads: planned on a broker in memory, then as DataFrames on the real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from rmq_async import Message, Producer
from rmq_async.errors import ConfigError, OffsetRangeError
from rmq_async.spark import RocketMQDataSource
from rmq_async.spark.pipelines.archive import ARCHIVE_DDL
from rmq_async.spark.reading import PushingReader
from rmq_protocol.message import MessageExt, MessageQueue

from .conftest import Loop, Topics
from .scripted import Broker, batch, ranges_of, rows_of, worker_of_its_own

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def filled(loop: Loop) -> Iterator[Broker]:
    """Topic t: 100 messages in queue 0, 20 of them deleted already, and 11 in queue 1, every tenth of queue 0 with tag x."""
    with worker_of_its_own():
        made = Broker(loop, brokers=2)
        made.topic("t", 2, broker="broker-a")
        made.topic("empty", 2)
        made.send("t", 20)
        made.servers.clear()
        for number in range(80):
            made.send("t", 1, tags="x" if number % 10 == 0 else "y")
        made.send("t", 11, ("broker-a", 1))
        yield made
        made.close()


def sizes(broker: Broker, **options: str) -> list[tuple[int, int, int]]:
    return [
        (one.queue_id, one.start, one.end)
        for part in ranges_of(batch(broker, topic="t", **options).partitions())
        for one in part
    ]


EARLY = {"startingOffsets.default": "earliest"}


class TestPlanning:
    def test_bounds(self, filled: Broker) -> None:
        whole = [(0, 20, 100), (1, 0, 11)]
        assert sizes(filled) == whole
        assert sizes(
            filled, **EARLY, startingOffsets='{"t/broker-a/0": 40}', endingOffsets='{"t": {"broker-a": {"0": 41}}}'
        ) == [
            (0, 40, 41),
            whole[1],
        ]
        assert sizes(filled, startingOffsets="latest") == []
        assert sizes(filled, startingTimestamp="1", endingTimestamp="253402300799999") == whole
        assert sizes(filled, endingTimestamp="1") == []
        moment = filled.servers.messages("t")[-1].store_time_ms
        last = sizes(filled, startingOffsetsByTimestamp=json.dumps({"t/broker-a/1": moment}), **EARLY)
        assert last[0] == whole[0]
        assert last[1][2] == 11

    def test_cuts(self, filled: Broker) -> None:
        assert [end - start for _, start, end in sizes(filled, minPartitions="4")] == [20, 20, 20, 20, 11]
        assert max(end - start for _, start, end in sizes(filled, maxRecordsPerPartition="30")) <= 30
        together = ranges_of(batch(filled, topic="t", maxPartitions="1").partitions())
        assert [len(part) for part in together] == [2]

    def test_losses(self, filled: Broker, caplog: pytest.LogCaptureFixture) -> None:
        old, young, wild = (f'{{"t/broker-a/0": {offset}}}' for offset in (5, 101, 100))
        expected = "messages were deleted before they were read; offsets 5 to 100 were to be read, available are 20 to 100"
        with pytest.raises(OffsetRangeError, match=expected):
            sizes(filled, startingOffsets=old, **EARLY)
        assert sizes(filled, startingOffsets=old, **EARLY, failOnDataLoss="false") == [(0, 20, 100), (1, 0, 11)]
        assert expected in caplog.text
        with pytest.raises(OffsetRangeError, match="t/broker-a/0: the start is beyond the last message"):
            sizes(filled, startingOffsets=young, **EARLY)
        with pytest.raises(OffsetRangeError, match="t/broker-a/0: the end is beyond the last message"):
            sizes(filled, endingOffsets=young)
        assert sizes(filled, endingOffsets=young, failOnDataLoss="false") == [(0, 20, 100), (1, 0, 11)]
        with pytest.raises(ConfigError, match="the end of t/broker-a/0, offset 30, is before its start, offset 100"):
            sizes(filled, startingOffsets=wild, **EARLY, endingOffsets='{"t/broker-a/0": 30}')

    def test_nothing_to_read_is_one_empty_partition_of_ours(self, filled: Broker) -> None:
        reader = batch(filled, topic="empty")
        slices = reader.partitions()
        assert ranges_of(slices) == [[]]
        assert rows_of(reader, slices) == []

    def test_filters(self, filled: Broker) -> None:
        def reading(*filters: Filter, **options: str) -> tuple[PushingReader, Any]:
            reader = batch(filled, topic="t", filterPushdown="true", **options)
            assert isinstance(reader, PushingReader)
            assert list(reader.pushFilters(list(filters))) == list(filters), "Spark looks at the rows, too"
            return reader, reader.partitions()

        reader, slices = reading(EqualTo(("tags",), "x"))
        assert len(rows_of(reader, slices)) == 8
        assert ranges_of(reading(EqualTo(("queueId",), 1))[1]) == [[("t", "broker-a", 1, 0, 11)]]
        assert ranges_of(reading(In(("queueId",), (0,)), GreaterThanOrEqual(("offset",), 98))[1]) == [
            [("t", "broker-a", 0, 98, 100)]
        ]
        late = datetime(2100, 1, 1, tzinfo=UTC)
        assert ranges_of(reading(GreaterThanOrEqual(("storeTimestamp",), late))[1]) == [[]]
        early = datetime(2000, 1, 1, tzinfo=UTC)
        assert len(ranges_of(reading(GreaterThanOrEqual(("storeTimestamp",), early))[1])) == 2
        assert ranges_of(reading(EqualTo(("tags",), "x"), tags="y")[1]) == [[]]


def plain(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted(
        (row.brokerName, row.queueId, row.offset, row.topic, row.msgId, row.offsetMsgId, row.tags, row.keys, bytes(row.body),
         tuple(sorted(row.properties.items())), row.bornTimestamp, row.storeTimestamp, row.bornHost, row.storeHost,
         row.reconsumeTimes, row.flag, row.sysFlag)
        for row in rows
    )  # fmt: skip


def of_client(messages: list[MessageExt]) -> list[tuple[Any, ...]]:
    def moment(milliseconds: int) -> datetime:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)

    return sorted(
        (each.queue.broker_name, each.queue.queue_id, each.queue_offset, each.topic, each.msg_id, each.offset_msg_id, each.tags,
         each.properties.get("KEYS"), each.body, tuple(sorted(each.properties.items())), moment(each.born_time_ms),
         moment(each.store_time_ms), each.born_host, each.store_host, each.reconsume_times, each.flag, each.sys_flag)
        for each in messages
    )  # fmt: skip


def fill(topics: Topics, topic: str, count: int) -> None:
    def message(number: int) -> Message:
        return Message(
            topic,
            f"body {number} ä".encode(),
            tags="x" if number % 100 == 0 else None,
            keys=["k", str(number)],
            properties={"number": str(number)},
            flag=number % 3,
        )

    async def send() -> None:
        async with Producer("fills", namesrv=topics.namesrv) as producer:
            for first in range(0, count, 100):
                numbers = range(first, first + 100)
                await asyncio.gather(
                    *(producer.send(message(number), queue=MessageQueue(topic, "broker-a", number % 4)) for number in numbers)
                )

    topics.loop.run(send())


def test_a_topic_is_a_dataframe(spark: SparkSession, topics: Topics, reading: Callable[..., DataFrame]) -> None:
    """Everything that a plain client reads, in each way to say which part of it."""
    topic, empty = topics.make(4), topics.make(2)
    fill(topics, topic, 1000)
    expected = of_client(topics.read(topic))
    assert len(expected) == 1000

    frame = reading(topic)
    assert plain(frame.collect()) == expected
    assert frame.rdd.getNumPartitions() == 4
    assert reading(empty).count() == 0

    bounds = {
        "startingOffsets": json.dumps({f"{topic}/broker-a/0": 100, f"{topic}/broker-a/1": -1}),
        **EARLY,
        "endingOffsets": json.dumps({topic: {"broker-a": {"0": 150, "2": 3, "3": 0}}}),
    }
    part = reading(topic, columns="offset,queueId", minPartitions=5, **bounds)
    assert part.columns == ["offset", "queueId"]
    assert part.rdd.getNumPartitions() >= 5
    assert sorted((row.queueId, row.offset) for row in part.collect()) == [(0, each) for each in range(100, 150)] + [
        (2, 0),
        (2, 1),
        (2, 2),
    ]

    tagged = spark.read.format("rocketmq").schema("tags string, body binary").option("nameserver", topics.namesrv)
    rows = tagged.option("topic", topic).option("tags", "x || nothing").option("maxPartitions", 1).load().collect()
    assert sorted(bytes(row.body).decode() for row in rows) == sorted(f"body {number} ä" for number in range(0, 1000, 100))
    assert {row.tags for row in rows} == {"x"}


def test_a_where_and_a_view(spark: SparkSession, topics: Topics, reading: Callable[..., DataFrame]) -> None:
    topic = topics.make(4)
    fill(topics, topic, 400)
    spark.sql(f"CREATE TEMPORARY VIEW messages USING rocketmq OPTIONS (topic '{topic}', nameserver '{topics.namesrv}')")
    try:
        found = spark.sql("SELECT keys, properties['number'] AS number FROM messages WHERE tags = 'x' ORDER BY keys").collect()
    finally:
        spark.catalog.dropTempView("messages")
    assert [(row.keys, row.number) for row in found] == [(f"k {number}", str(number)) for number in range(0, 400, 100)]

    where = "tags = 'x' AND queueId IN (0, 1) AND storeTimestamp > '2020-01-01' AND body IS NOT NULL"
    without = sorted(row.keys for row in reading(topic).where(where).collect())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert sorted(row.keys for row in reading(topic).where(where).collect()) == without
        pushing = reading(topic, filterPushdown=True).where(where)
        assert sorted(row.keys for row in pushing.collect()) == without
        assert pushing.rdd.getNumPartitions() == 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert len(without) == 4


def test_settings_of_session_change_no_column(spark: SparkSession, embedded_topics: Topics, tmp_path: Path) -> None:
    """Neither what "timestamp" means there nor that "offset" is a reserved word; batches, streams and what reads an archive."""
    topic = embedded_topics.make(4)
    fill(embedded_topics, topic, 100)
    expected = of_client(embedded_topics.read(topic))
    given = {"nameserver": embedded_topics.namesrv, "topic": topic}
    settings = {"spark.sql.timestampType": "TIMESTAMP_NTZ", "spark.sql.ansi.enforceReservedKeywords": "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        frame = spark.read.format("rocketmq").options(**given).load()
        assert plain(frame.collect()) == expected
        assert frame.schema["storeTimestamp"].dataType == TimestampType()
        stream = spark.readStream.format("rocketmq").options(**given, startingOffsets="earliest").load()
        writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        archived = spark.read.schema(ARCHIVE_DDL).parquet(str(tmp_path / "out"))
        assert plain(archived.drop("date").collect()) == expected
        with pytest.raises(
            ConfigError, match="column storeTimestamp must be timestamp, not timestamp_ntz; write timestamp_ltz"
        ):
            RocketMQDataSource(given).reader(StructType().add("storeTimestamp", TimestampNTZType()))
    finally:
        for name in settings:
            spark.conf.unset(name)
