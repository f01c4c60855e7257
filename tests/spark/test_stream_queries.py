"""Streaming reads as queries, on a real broker."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from rmq_async import Message, Producer, PullConsumer
from rmq_protocol.message import MessageQueue

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


class Stream:
    """One query on the real broker, into Parquet; ``checkpoint`` outlives its runs."""

    def __init__(self, spark: SparkSession, topics: Topics, place: Path, **options: object) -> None:
        self.spark = spark
        self.place = place
        self.checkpoint = place / "checkpoint"
        self.options = {"nameserver": topics.namesrv, "columns": "topic,queueId,offset,body", **options}

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = (
            self.spark.readStream.format("rocketmq")
            .options(**{name: str(value) for name, value in self.options.items()})
            .load()
        )
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint)).trigger(**trigger)
        return writer.start(str(self.place / "rows"))

    def run(self) -> list[Any]:
        """To the end of what there is; the progress of each micro-batch."""
        query = self.start(availableNow=True)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return [progress for progress in query.recentProgress if progress.numInputRows or progress.batchId == 0]

    def bodies(self) -> list[str]:
        rows = self.spark.read.parquet(str(self.place / "rows")).collect()
        assert len({(row.topic, row.queueId, row.offset) for row in rows}) == len(rows)
        return sorted(bytes(row.body).decode() for row in rows)


def send(topics: Topics, topic: str, bodies: list[str], queues: int = 4) -> None:
    async def sending() -> None:
        async with Producer("sends", namesrv=topics.namesrv) as producer:
            for number, body in enumerate(bodies):
                await producer.send(Message(topic, body.encode()), queue=MessageQueue(topic, "broker-a", number % queues))

    topics.loop.run(sending())


def numbered(first: int, last: int) -> list[str]:
    return [f"{number:05}" for number in range(first, last)]


def test_runs_with_one_checkpoint_read_everything_once(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """From ``latest``, with limits; and the restart that loses rows where no checkpoint holds what ``latest`` was."""
    topic = topics.make(4)
    send(topics, topic, numbered(0, 100))
    stream = Stream(
        spark, topics, tmp_path, topic=topic, startingOffsets="latest", maxOffsetsPerTrigger=40, consumerGroup="spark-stream",
        commitOffsets=True,
    )  # fmt: skip
    (empty,) = stream.run()
    assert (empty.batchId, empty.numInputRows) == (0, 0)

    # The state that a driver leaves which is killed between planning and committing its first micro-batch of 50 rows.
    send(topics, topic, numbered(100, 150))
    log = stream.checkpoint / "offsets" / "0"
    lines = log.read_text().splitlines()
    planned = json.loads(lines[-1])
    assert planned["q"] == planned["init"] == {f"{topic}/broker-a/{queue}": 25 for queue in range(4)}
    planned["q"] = {f"{topic}/broker-a/{queue}": 38 if queue < 2 else 37 for queue in range(4)}
    log.write_text("\n".join([*lines[:-1], json.dumps(planned)]))
    (log.parent / ".0.crc").unlink()
    for name in ("0", ".0.crc"):
        (stream.checkpoint / "commits" / name).unlink()
        (stream.place / "rows" / "_spark_metadata" / name).unlink()
    send(topics, topic, numbered(150, 250))

    progress = stream.run()
    assert stream.bodies() == numbered(100, 250)
    assert [each.batchId for each in progress] == list(range(len(progress)))
    assert [each.numInputRows for each in progress] == [50, 40, 40, 20]
    (source,) = progress[1].sources
    assert sum(json.loads(source.latestOffset)["q"].values()) - sum(json.loads(source.endOffset)["q"].values()) == 60, "the lag"

    async def committed() -> list[int | None]:
        async with PullConsumer("spark-stream", namesrv=topics.namesrv) as consumer:
            return [await consumer.committed(MessageQueue(topic, "broker-a", queue)) for queue in range(4)]

    offsets = topics.loop.run(committed())
    assert sum(offset or 0 for offset in offsets) == 100 + 50 + 40 + 40, "one micro-batch late"


def test_a_running_stream_takes_up_what_comes(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    """New topics of its pattern and new queues; and it ends without leaving a process."""
    prefix = topics.make(2)
    stream = Stream(spark, topics, tmp_path, subscribePattern=f"{prefix}.*", startingOffsets="earliest", minPartitions=3)
    send(topics, prefix, numbered(0, 10), 2)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    query = stream.start(processingTime="100 milliseconds")
    try:
        topics.make(1, f"{prefix}-more")
        topics.make(4, prefix)
        send(topics, f"{prefix}-more", numbered(10, 15), 1)
        send(topics, prefix, numbered(15, 35), 4)
        until(lambda: sum(progress.numInputRows for progress in query.recentProgress) >= 35, query)
    finally:
        query.stop()
    assert query.exception() is None
    assert stream.bodies() == numbered(0, 35)
    until(lambda: not planners(before))


def planners(before: set[int]) -> list[psutil.Process]:
    """Processes that a query has for itself alone: they are no forks of Spark's daemons, which stay."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.pid not in before and "streaming_source_runner" in " ".join(process.cmdline()):
                found.append(process)
    return found


def until(true: Callable[[], bool], query: StreamingQuery | None = None) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        assert query is None or query.exception() is None
        time.sleep(0.1)
