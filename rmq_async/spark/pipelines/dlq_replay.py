"""Replays dead letters to their original topics.

``rmq spark dlq-replay GROUP`` prints the plan. With ``--send``, it also sends the messages.

No state is kept between runs. A replayed message has an id that names its dead letter (``RMQ_SPARK_ID``). Therefore, a run
finds the messages of earlier runs, including killed runs, in the target topics, and does not send them again (except with
``--again``). It reads the ids of all messages that were stored since shortly before the oldest dead letter. Copies are younger
than their dead letters, so retention deletes the copies later. A stored position would not be sufficient, because dead letters
that a filter, the guard or a missing target left behind would never be sent.

As a guard against loops, a replayed message has the number of its replays in ``RMQ_DLQ_REPLAYS``. Brokers keep this property
when the message becomes a dead letter again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

from rmq_async.admin import Admin
from rmq_async.errors import ConfigError, TopicNotFoundError
from rmq_async.spark.pipelines import job
from rmq_async.spark.pipelines.arguments import ask, options_for, refuse_replicas, refuse_topics, window
from rmq_async.spark.pipelines.job import Progress, no_progress
from rmq_async.spark.pipelines.outgoing import access_for, shared_rate, write
from rmq_async.spark.pipelines.session import activate, parallelism
from rmq_async.spark.rows import ID_PROPERTY
from rmq_protocol.constants import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, PropertyName
from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.validation import check_group, check_topic

REPLAYS_PROPERTY: Final = "RMQ_DLQ_REPLAYS"
"""Property with the number of a message's replays."""
ORIGIN_PROPERTY: Final = "RMQ_DLQ_ORIGIN_ID"
"""Property with the id of the message when it was first sent."""

MOST_TOPICS: Final = 1000
"""Maximum number of target topics, because each topic is looked up and reported."""
CLOCKS: Final = timedelta(minutes=5)
"""Tolerated difference between the clocks of two brokers."""

_COLUMNS: Final = "topic,brokerName,queueId,offset,msgId,tags,keys,body,properties,storeTimestamp,flag"


@dataclass(frozen=True)
class Replayed:
    """The result of one run.

    Attributes:
        found: Number of dead letters that match the filters. It is the sum of the five counts that follow.
        to_send: Number of dead letters that a real run would send.
        before: Number of dead letters that earlier runs replayed.
        guarded: Number of dead letters that were already replayed as often as allowed.
        no_target: Number of dead letters that name no topic or name one of ``missing_topics``.
        topics: Number of messages that were replayed, or would be replayed, by topic.
    """

    dry_run: bool
    found: int = 0
    replayed: int = 0
    to_send: int = 0
    before: int = 0
    guarded: int = 0
    no_target: int = 0
    topics: Mapping[str, int] = field(default_factory=dict)
    missing_topics: tuple[str, ...] = ()
    failed: bool = False


def replay_dead_letters(
    spark: SparkSession,
    group: str,
    options: Mapping[str, str],
    *,
    send: bool = False,
    topic: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    tags: str | None = None,
    key: str | None = None,
    where: str | None = None,
    max_replays: int = 1,
    look: bool = True,
    rate: int | None = None,
    progress: Progress = no_progress,
) -> Replayed:
    """Send the dead letters of ``group`` to their original topics. If ``send`` is False, only count them.

    Every group that reads a target topic gets the messages, not only the group that failed.

    Args:
        options: Options of format rocketmq, for both directions.
        topic: The target of messages that do not name their original topic or that name a retry or dead-letter topic.
        since: Start of the range of store times of the dead letters (inclusive, an aware datetime). None stands for no limit.
        until: End of this range (exclusive, an aware datetime). None stands for no limit.
        tags: Replay only messages with one of these tags, such as "a || b".
        key: Replay only messages with this key.
        where: SQL on the columns of the source.
        max_replays: Maximum number of replays of one message in all runs, 1 or more.
        look: False sends without first reading the messages of earlier runs from the target topics.
        rate: Maximum number of messages per second. None stands for no limit.
        progress: Called once per target topic, and while sending.

    Raises:
        ConfigError: For invalid arguments and for dead letters of more than 1000 topics.
        TopicNotFoundError: If the group has no dead-letter topic.
        RocketMQError: For failed requests to the cluster. The errors of Spark are raised, too. After a failure, the next run
            sends the remaining messages.
    """
    source = _source(group, topic, max_replays, options)
    writing = options_for("batch write", options, idColumn="id")
    namespace = access_for(writing).namespace
    bounds = window(since, until)
    _check_there(options, group, source)
    activate(spark)
    reading = options_for("batch read", options, topic=source, columns=_COLUMNS, tags=tags, **bounds)
    letters = spark.read.format("rocketmq").options(**reading).load()
    if key is not None:
        letters = letters.where(sql.array_contains(sql.split("keys", " "), key))
    if where is not None:
        letters = letters.where(where)
    letters = _understood(letters, topic, namespace).persist(StorageLevel.DISK_ONLY)
    done: DataFrame | None = None
    try:
        targets = _targets(letters, max_replays)
        missing = tuple(name for name in targets if not _exists(options, name))
        if look and (wanted := {name: when for name, when in targets.items() if name not in missing}):
            done = _done(spark, options, source, wanted).persist(StorageLevel.DISK_ONLY)
        judged = _judged(letters, done, missing, max_replays)
        summary = _counted(judged, missing, send=send, progress=progress)
        if send and summary.to_send:
            written = write(_messages(judged, writing, rate), writing, summary.topics, progress, summary.to_send)
            summary = dataclasses.replace(summary, replayed=written.messages, to_send=0)
        return summary
    finally:
        letters.unpersist()
        if done is not None:
            done.unpersist()


def _source(group: str, topic: str | None, max_replays: int, options: Mapping[str, str]) -> str:
    """Check the arguments and the options, and return the topic of the dead letters."""
    try:
        check_group(group)
        if topic is not None:
            check_topic(topic)
    except InvalidMessageError as error:
        raise ConfigError(str(error)) from None
    if max_replays < 1:
        raise ConfigError(f"max_replays must be 1 or more, not {max_replays}")
    refuse_topics(options)
    refuse_replicas(options, "copies that it lacks would be sent again")
    return group if group.startswith(DLQ_TOPIC_PREFIX) else DLQ_TOPIC_PREFIX + group


def _check_there(options: Mapping[str, str], group: str, source: str) -> None:
    if not _exists(options, source):
        raise TopicNotFoundError(f"group {group} has no dead letters: there is no topic {source}; check the name of the group")


def _exists(options: Mapping[str, str], topic: str) -> bool:
    async def look(admin: Admin) -> bool:
        try:
            await admin.topic_route(topic)
        except TopicNotFoundError:
            return False
        return True

    return ask(options, look)


def _understood(letters: DataFrame, topic: str | None, namespace: str | None) -> DataFrame:
    """Add the columns ``target`` (NULL if there is no target), ``replays``, ``origin`` and ``id``."""
    given = sql.col("properties")

    def named(name: str) -> Column:
        return sql.nullif(given[name], sql.lit(""))

    target = sql.coalesce(named(PropertyName.DLQ_ORIGIN_TOPIC.value), named(PropertyName.RETRY_TOPIC.value))
    if namespace:
        target = sql.when(target.startswith(f"{namespace}%"), sql.substr(target, sql.lit(len(namespace) + 2))).otherwise(target)
    elsewhere = ~(target.startswith(DLQ_TOPIC_PREFIX) | target.startswith(RETRY_TOPIC_PREFIX))
    place = (sql.col(name).cast("string") for name in ("topic", "brokerName", "queueId", "offset", "msgId"))
    return letters.withColumns(
        {
            "target": sql.coalesce(sql.when(elsewhere, target), sql.lit(topic).cast("string")),
            "replays": sql.coalesce(given[REPLAYS_PROPERTY].try_cast("int"), sql.lit(0)),
            "origin": sql.coalesce(named(ORIGIN_PROPERTY), named(PropertyName.DLQ_ORIGIN_MESSAGE_ID.value), sql.col("msgId")),
            "id": sql.concat_ws("/", sql.lit("dlq"), *place),
        }
    )


def _targets(letters: DataFrame, max_replays: int) -> dict[str, datetime]:
    """Return the target topics of dead letters with fewer than ``max_replays`` replays, each with the store time of its oldest
    dead letter.
    """
    found = (
        letters.where(sql.col("target").isNotNull() & (sql.col("replays") < max_replays))
        .groupBy("target")
        .agg(sql.unix_millis(sql.min("storeTimestamp")).alias("oldest"))
        .limit(MOST_TOPICS + 1)
        .collect()
    )
    if len(found) > MOST_TOPICS:
        raise ConfigError(f"the dead letters come from more than {MOST_TOPICS} topics; give where to select fewer")
    return {row.target: datetime.fromtimestamp(row.oldest / 1000, UTC) for row in found}


def _done(spark: SparkSession, options: Mapping[str, str], source: str, targets: Mapping[str, datetime]) -> DataFrame:
    """Return the ids of dead letters that earlier runs have sent to these topics, as column ``done``."""
    reading = options_for(
        "batch read",
        options,
        subscribe=",".join(sorted(targets)),
        columns="properties",
        **window(min(targets.values()) - CLOCKS, None),
    )
    ids = spark.read.format("rocketmq").options(**reading).load().select(sql.col("properties")[ID_PROPERTY].alias("done"))
    return ids.where(sql.col("done").startswith(f"dlq/{source}/")).distinct()


def _judged(letters: DataFrame, done: DataFrame | None, missing: Collection[str], max_replays: int) -> DataFrame:
    """Add the column ``verdict``: the name of the field of ``Replayed`` that counts the dead letter."""
    if done is None:
        joined = letters.withColumn("done", sql.lit(None).cast("string"))
    else:
        joined = letters.join(done, letters["id"] == done["done"], "left")
    verdict = (
        sql.when(sql.col("target").isNull() | sql.col("target").isin(*missing), "no_target")
        .when(sql.col("done").isNotNull(), "before")
        .when(sql.col("replays") >= max_replays, "guarded")
        .otherwise("to_send")
    )
    return joined.withColumn("verdict", verdict)


def _counted(judged: DataFrame, missing: tuple[str, ...], *, send: bool, progress: Progress) -> Replayed:
    """Count the dead letters by target and verdict, and report a line for each target."""

    def count(verdict: str) -> Column:
        return sql.count_if(sql.col("verdict") == verdict).alias(verdict)

    example = sql.struct("msgId", "keys")
    rows = (
        judged.groupBy("target")
        .agg(
            sql.count(sql.lit(1)).alias("found"),
            *(count(verdict) for verdict in ("to_send", "before", "guarded", "no_target")),
            sql.date_format(sql.min("storeTimestamp"), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias("oldest"),
            sql.date_format(sql.max("storeTimestamp"), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX").alias("newest"),
            sql.min_by(example, "storeTimestamp").alias("first"),
            sql.max_by(example, "storeTimestamp").alias("last"),
        )
        .orderBy(sql.desc("found"), "target")
        .collect()
    )
    for row in rows:
        figures = {name: row[name] for name in ("found", "to_send", "before", "guarded", "no_target", "oldest", "newest")}
        examples = dict.fromkeys(f"{one.msgId}" + (f" ({one['keys']})" if one["keys"] else "") for one in (row.first, row.last))
        progress({"topic": row.target or "(none)", **figures, "examples": "; ".join(examples)})
    sums = {name: sum(row[name] for row in rows) for name in ("found", "to_send", "before", "guarded", "no_target")}
    topics = {row.target: row.to_send for row in rows if row.to_send}
    return Replayed(dry_run=not send, topics=topics, missing_topics=missing, **sums)


def _messages(judged: DataFrame, writing: dict[str, str], rate: int | None) -> DataFrame:
    """Return the messages to send, in the order of the dead-letter queues.

    The sink drops properties of brokers and clients. Each task's share of ``rate`` is added to ``writing``.
    """
    given = sql.col("properties")
    kept = sql.map_filter(given, lambda name, value: ~name.isin(REPLAYS_PROPERTY, ORIGIN_PROPERTY))
    counted = sql.create_map(
        sql.lit(REPLAYS_PROPERTY), (sql.col("replays") + 1).cast("string"), sql.lit(ORIGIN_PROPERTY), sql.col("origin")
    )
    chosen = judged.where(sql.col("verdict") == "to_send")
    if rate is None:
        spread = chosen.repartition("brokerName", "queueId")
    else:
        tasks, each = shared_rate(rate, parallelism(judged.sparkSession))
        writing["maxMessagesPerSecond"] = str(each)
        spread = chosen.repartition(tasks, "brokerName", "queueId")
    return spread.sortWithinPartitions("brokerName", "queueId", "offset").select(
        sql.col("target").alias("topic"),
        "body",
        "tags",
        "keys",
        sql.map_concat(kept, counted).alias("properties"),
        given[PropertyName.SHARDING_KEY.value].alias("shardingKey"),
        "flag",
        "id",
    )


class _DlqReplay:
    DESCRIPTION = (
        "Send the dead letters of a group to their original topics. Without --send, print the plan and send nothing. "
        "Every group that reads these topics gets the messages again."
    )

    EXAMPLES = """
        rmq spark dlq-replay my-group
        rmq spark dlq-replay my-group --send --rate 100
        rmq spark dlq-replay my-group --from 2026-11-22T00:00:00Z --where "keys = '17'" --send
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("group", help="the consumer group whose dead letters, %%DLQ%%GROUP, are replayed")
        add("--send", action="store_true", help="send them; without it this is a dry run")
        add("--topic", help="target of messages that do not name their original topic")
        add(
            "--from",
            dest="since",
            type=job.moment,
            metavar="WHEN",
            help="only dead letters stored then or later; UTC if it names no zone",
        )
        add("--to", dest="until", type=job.moment, metavar="WHEN", help="only dead letters stored before")
        add("--tags", metavar="'A || B'", help="only messages with one of these tags")
        add("--key", help="only messages with this key")
        add("--where", metavar="SQL", help='only these, such as "bornTimestamp > ..." on the columns of the source')
        add(
            "--max-replays", type=job.whole_number(1, 1000), default=1, metavar="N",
            help="do not send messages that were replayed N times and became dead letters again; default: %(default)s",
        )  # fmt: skip
        add("--again", action="store_true", help="send without searching the target topics for messages of earlier runs")
        add("--rate", type=job.whole_number(1, 10**9), metavar="N", help="maximum number of messages per second")

    def check(self, given: argparse.Namespace) -> None:
        """Check the arguments, and look up the dead-letter topic.

        Raise the errors of requests, too.

        Raises:
            ConfigError: For wrong arguments.
            TopicNotFoundError: If there is no such topic.
        """
        options = job.connection_options(given)
        source = _source(given.group, given.topic, given.max_replays, options)
        access_for(options_for("batch write", options, idColumn="id"))
        window(given.since, given.until)
        _check_there(options, given.group, source)

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> Replayed:
        return replay_dead_letters(
            spark,
            given.group,
            job.connection_options(given),
            send=given.send,
            topic=given.topic,
            since=given.since,
            until=given.until,
            tags=given.tags,
            key=given.key,
            where=given.where,
            max_replays=given.max_replays,
            look=not given.again,
            rate=given.rate,
            progress=progress,
        )


JOB: Final = _DlqReplay()


def main(arguments: Sequence[str] | None = None) -> int:
    return job.run_job("dlq-replay", JOB, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
