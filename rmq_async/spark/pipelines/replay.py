"""Replays an archive to topics. The messages of each queue keep their order.

A first pass over the small columns counts the messages in the window, by queue. Each queue is sent to the queue with the same
broker and number if the target has it. Otherwise, the queue's name and the number of the target's queues determine the target
queue. Therefore, messages of one queue, including messages with one sharding key, keep their order: one task sends all messages
of a queue, by ascending offset. Queues that share a task advance together, each in proportion to its size.

To run it as a program, call ``rmq spark replay`` or pass this file to ``spark-submit``.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike, fspath
from time import monotonic
from typing import Final, NamedTuple
from zlib import crc32

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines import job
from rmq_async.spark.pipelines.archive import ARCHIVE_DDL
from rmq_async.spark.pipelines.job import PipelineError, Progress, no_progress
from rmq_async.spark.pipelines.outgoing import Written, access_for, shared_rate, target_queues, write
from rmq_async.spark.pipelines.session import parallelism
from rmq_async.spark.positions import key_of
from rmq_async.spark.rows import ID_PROPERTY
from rmq_protocol.constants import PropertyName
from rmq_protocol.message import MessageQueue

NEEDED: Final = ("topic", "brokerName", "queueId", "offset", "tags", "keys", "body", "properties", "storeTimestamp", "flag")
DROPPED: Final = frozenset(name.value for name in PropertyName) - {PropertyName.SHARDING_KEY.value} | {ID_PROPERTY}
"""Properties that clients and brokers set on the archived message and that a copy must not have. Tags and keys are columns."""
ID: Final = "rmqSparkId"


class ArchivedQueue(NamedTuple):
    """The messages of one queue in the window.

    Attributes:
        first: Offset of the first message.
        last: Offset of the last message.
    """

    topic: str
    broker: str
    queue_id: int
    first: int
    last: int
    messages: int
    oldest: datetime
    newest: datetime

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


class Route(NamedTuple):
    """The target of an archived queue.

    Attributes:
        slot: Number of the task that sends the queue.
    """

    source: ArchivedQueue
    queue: MessageQueue
    slot: int


@dataclass(frozen=True, kw_only=True)
class ReplaySummary:
    """The result of one run.

    Attributes:
        found: Number of messages in the window.
        messages: Number of messages that were sent and acknowledged.
        bytes: Size of their bodies.
        arrived: Growth of the topics, including messages of other producers. None after a dry run, if nothing was found, and if
            it could not be read.
        queues: For each queue of the archive, the number of its messages and their target.
    """

    path: str
    topics: tuple[str, ...]
    found: int
    messages: int
    bytes: int
    arrived: int | None
    oldest: datetime | None
    newest: datetime | None
    seconds: float
    dry_run: bool
    queues: Mapping[str, tuple[int, str]]

    @property
    def failed(self) -> bool:
        if self.dry_run:
            return False
        return self.messages != self.found or (self.arrived is not None and self.arrived < self.messages)


def replay(
    spark: SparkSession,
    path: str | PathLike[str],
    *,
    topic: str | None = None,
    to_original: bool = False,
    source_topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    where: str | None = None,
    rate: int | None = None,
    exact_queues: bool = False,
    dry_run: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> ReplaySummary:
    """Send messages that were stored from ``start`` on and before ``end`` to ``topic`` or, with ``to_original``, to their own
    topics.

    Body, keys, tags, flag, sharding key and the user's non-blank properties are kept. System properties are not kept.
    ``RMQ_SPARK_ID`` is topic/broker/queue/offset in the archive, which identifies a message that is replayed twice.

    Args:
        source_topics: The topics of the archive to replay. If empty, all topics are replayed.
        start: Earliest store time. Naive times are UTC. None stands for no limit.
        end: Store time before which messages are sent. Naive times are UTC. None stands for no limit.
        where: An SQL condition on the columns of the archive.
        rate: Maximum number of messages per second of all tasks together, at least 1. None stands for no limit.
        exact_queues: True allows only the target's queue with the same broker and number.
        dry_run: True counts and sends nothing.
        options: Options of format rocketmq.
        progress: Called with the counts, and then while messages are sent.

    Raises:
        ConfigError: If both or neither of ``topic`` and ``to_original`` are given, for an empty window, for an invalid option
            or rate, and for a path without an archive. With ``exact_queues``, also if the target has no writable queue with the
            same broker and number.
        PipelineError: For an archive without files, and for an archive that has more messages of a queue than offsets. Without
            ``exact_queues``, also for a target without a writable queue.
        TopicNotFoundError: For a target that does not exist. The other errors of requests to the cluster and the errors of
            Spark are raised, too.
    """
    began, path = monotonic(), fspath(path)
    _check(topic, to_original, start, end)
    given = dict(options or {}) | ({"topic": topic} if topic is not None else {})
    access = access_for(given)
    frame = _window(read_archive(spark, path), source_topics, start, end, where)
    archived = _archived_queues(frame, path)
    found = sum(source.messages for source in archived)
    progress({"found": found, "queues": len(archived)})
    targets = target_queues(access, {topic or source.topic for source in archived} or ({topic} if topic else ()))
    tasks = parallelism(spark)
    if rate is not None:
        tasks, each = shared_rate(rate, min(tasks, max(len(archived), 1)))
        given["maxMessagesPerSecond"] = str(each)
    plan = routes(archived, targets, topic, tasks, exact=exact_queues)
    written = Written(messages=0, bytes=0, arrived=None)
    if found and not dry_run:
        given["idColumn"] = ID
        written = write(_outgoing(spark, frame, plan, topic, tasks), given, targets, progress, found)
    return ReplaySummary(
        path=path,
        topics=tuple(targets),
        found=found,
        messages=written.messages,
        bytes=written.bytes,
        arrived=written.arrived,
        oldest=min((source.oldest for source in archived), default=None),
        newest=max((source.newest for source in archived), default=None),
        seconds=round(monotonic() - began, 3),
        dry_run=dry_run,
        queues={route.source.name: (route.source.messages, key_of(route.queue)) for route in plan},
    )


def _check(topic: str | None, to_original: bool, start: datetime | None, end: datetime | None) -> None:
    """Raise ConfigError if no target or two targets are given, and for an empty window."""
    if (topic is not None) == to_original:
        raise ConfigError(
            "a replay needs one target: give a topic, or to_original=True (--to-original) for the topics of the archive, not both"
        )
    if start is not None and end is not None and _utc(start) >= _utc(end):
        raise ConfigError(
            f"the window is empty: it begins at {start.isoformat()} and ends at {end.isoformat()}; give a later end"
        )


def read_archive(spark: SparkSession, path: str | PathLike[str]) -> DataFrame:
    """Return the archive at a path as a DataFrame.

    Raises:
        ConfigError: If there is no archive at the path.
        PipelineError: If the archive is empty.
    """
    path = fspath(path)
    try:
        columns = spark.read.parquet(path).columns
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise ConfigError(f"there is no archive at {path}: the path does not exist; check it") from None
        if error.getCondition() == "UNABLE_TO_INFER_SCHEMA":
            raise PipelineError(
                f"the archive at {path} is empty: it holds no file of messages; check the path, or archive a topic first"
            ) from None
        raise
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise ConfigError(
            f"{path} is not an archive of topics: it has no column {missing[0]}; give the directory that rmq spark archive wrote"
        )
    return spark.read.schema(ARCHIVE_DDL).parquet(path)


def routes(
    archived: Sequence[ArchivedQueue],
    targets: Mapping[str, Sequence[MessageQueue]],
    topic: str | None,
    tasks: int,
    *,
    exact: bool,
) -> list[Route]:
    """Assign every archived queue, the source, to one queue of the target and to a task.

    The queue has the same broker and number as the source. If there is none, the source's name and the target's queues
    determine the queue. The task is the one with the fewest messages so far; the largest sources are assigned first.

    Raises:
        ConfigError: With ``exact``, for a source for which the target has no writable queue with the same broker and number.
        PipelineError: Without ``exact``, for a target that has no writable queue.
    """
    bins = [(0, slot) for slot in range(tasks)]
    slots = {}
    for source in sorted(archived, key=lambda source: (-source.messages, source)):
        size, slot = heapq.heappop(bins)
        slots[source] = slot
        heapq.heappush(bins, (size + source.messages, slot))
    plan = []
    for source in sorted(archived):
        target = topic if topic is not None else source.topic
        queues = targets[target]
        queue = MessageQueue(target, source.broker, source.queue_id)
        if queue not in queues:
            if exact:
                there = ", ".join(f"{queue.broker_name}/{queue.queue_id}" for queue in queues) or "none"
                raise ConfigError(
                    f"topic {target} has no queue {source.broker}/{source.queue_id} to write to; it has {there}; add it, or replay "
                    "without exact_queues (--exact-queues)"
                )
            if not queues:
                raise PipelineError(f"topic {target} has no queue that can be written to; give it write permission")
            queue = queues[(crc32(f"{source.topic}/{source.broker}".encode()) + source.queue_id) % len(queues)]
        plan.append(Route(source, queue, slots[source]))
    return plan


def _utc(when: datetime) -> datetime:
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _window(
    frame: DataFrame, topics: Iterable[str], start: datetime | None, end: datetime | None, where: str | None
) -> DataFrame:
    """Return the messages of ``topics`` (all if empty) in the window for which ``where`` is true.

    Dates are also compared, so that Spark does not read other directories.
    """
    topics = tuple(topics)
    if topics:
        frame = frame.where(F.col("topic").isin(*topics))
    if start is not None:
        frame = frame.where((F.col("date") >= F.lit(_utc(start).date())) & (F.col("storeTimestamp") >= _moment(start)))
    if end is not None:
        frame = frame.where((F.col("date") <= F.lit(_utc(end).date())) & (F.col("storeTimestamp") < _moment(end)))
    return frame if where is None else frame.where(where)


def _moment(when: datetime) -> Column:
    return F.timestamp_micros(F.lit(round(_utc(when).timestamp() * 1_000_000)))


def _archived_queues(frame: DataFrame, path: str) -> list[ArchivedQueue]:
    stored = F.unix_micros("storeTimestamp")
    rows = (
        frame.groupBy("topic", "brokerName", "queueId")
        .agg(F.min("offset"), F.max("offset"), F.count(F.lit(1)), F.min(stored), F.max(stored))
        .collect()
    )
    archived = [
        ArchivedQueue(topic, broker, queue_id, first, last, messages, _time(oldest), _time(newest))
        for topic, broker, queue_id, first, last, messages, oldest, newest in rows
    ]
    for source in archived:
        if source.messages > source.last - source.first + 1:
            raise PipelineError(
                f"{path} holds messages twice: {source.messages} of {source.name} between offsets {source.first} and "
                f"{source.last}; if it was copied without _spark_metadata, copy that directory too"
            )
    return sorted(archived)


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1_000_000, UTC)


def _outgoing(spark: SparkSession, frame: DataFrame, plan: Sequence[Route], topic: str | None, tasks: int) -> DataFrame:
    """Return the sink's columns, partitioned by task and sorted."""
    rows = [
        (
            route.source.topic, route.source.broker, route.source.queue_id,
            route.queue.broker_name, route.queue.queue_id, route.slot, route.source.first,
            route.source.last - route.source.first + 1,
        )
        for route in plan
    ]  # fmt: skip
    archived = spark.createDataFrame(
        rows,
        "topic string, brokerName string, queueId int, toBroker string, toQueue int, slot int, first bigint, span bigint",
    )
    queue = ["topic", "brokerName", "queueId"]
    dropped = [F.lit(name) for name in sorted(DROPPED)]
    placed = (
        frame.join(F.broadcast(archived), queue)
        .withColumn("along", (F.col("offset") - F.col("first")) / F.col("span"))
        .repartitionById(tasks, "slot")
        .sortWithinPartitions("along", *queue, "offset")
    )
    columns: list[str | Column] = [
        "body",
        "tags",
        "keys",
        F.map_filter("properties", lambda name, value: ~name.isin(*dropped) & (F.length(F.trim(value)) > 0)).alias(
            "properties"
        ),
        "flag",
        F.col("toBroker").alias("brokerName"),
        F.col("toQueue").alias("queueId"),
        F.concat_ws("/", "topic", "brokerName", "queueId", "offset").alias(ID),
    ]
    return placed.select(*columns) if topic is not None else placed.select("topic", *columns)


# -- the command


class _Replay:
    DESCRIPTION = (
        "Send an archive of 'rmq spark archive' to a topic: all of it, or the messages stored in a time range.\n"
        "Messages of one queue stay in one queue, in their order. Only --to-original sends to the original topics."
    )

    EXAMPLES = """
        rmq spark replay --path archive --topic OrdersAgain --from 2026-11-01T00:00:00Z --rate 5000
        rmq spark replay --path archive --to-original --source-topic Orders --where "tags = 'paid'" --dry-run
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--path", required=True, metavar="PATH", help="directory of the archive")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--topic", metavar="NAME", help="topic to send to; it must exist")
        where.add_argument("--to-original", action="store_true", help="send to the original topics of the messages")
        time = "2026-11-22T08:30:00Z or milliseconds since 1970"
        add("--from", dest="start", type=job.moment, metavar="WHEN", help=f"stored then or later; {time}")
        add("--to", dest="end", type=job.moment, metavar="WHEN", help="stored before")
        add("--source-topic", **job.SEVERAL, metavar="NAME", help="only this topic of the archive; may be repeated")
        add("--where", metavar="SQL", help="only messages for which this is true, such as \"tags = 'paid'\"")
        add("--rate", type=job.whole_number(1, 10**9), metavar="N", help="maximum number of messages per second")
        add("--exact-queues", action="store_true", help="fail if the topic does not have the same brokers and queues")
        add("--dry-run", action="store_true", help="print what would be sent where, and send nothing")
        parser.epilog = "RMQ_SPARK_ID of each message is topic/broker/queue/offset of the archived message."

    def check(self, given: argparse.Namespace) -> None:
        """Check the arguments that can be checked without Spark and, if a target topic is given, that it exists."""
        _check(given.topic, given.to_original, given.start, given.end)
        topic = {} if given.topic is None else {"topic": given.topic}
        target_queues(access_for(job.connection_options(given) | topic), topic.values())

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> ReplaySummary:
        return replay(
            spark,
            given.path,
            topic=given.topic,
            to_original=given.to_original,
            source_topics=given.source_topic,
            start=given.start,
            end=given.end,
            where=given.where,
            rate=given.rate,
            exact_queues=given.exact_queues,
            dry_run=given.dry_run,
            options=job.connection_options(given),
            progress=progress,
        )


REPLAY: Final = _Replay()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rmq spark replay`` and return the exit code."""
    return job.run_job("replay", REPLAY, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
