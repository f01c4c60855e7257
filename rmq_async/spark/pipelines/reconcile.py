"""What was sent against what a topic holds: does everything that was acknowledged exist, once?

    rmq spark reconcile --topic orders --sent sent.parquet --id-column message_id
    rmq spark reconcile --topic orders --outbox --format jdbc --read-option url=jdbc:postgresql://db/shop ...

One full outer join of two aggregates by identity: rows of the table, messages of the topic. Both are shuffled and spill to disk;
bodies are not built into columns, nothing but figures and a few examples comes to the driver. The table is read before the ends of
the queues are asked for, so that a row that is acknowledged meanwhile is never called missing.

Findings: ``missing``, acknowledged and not there; ``unacknowledged``, there although the table says it was not (or not yet) sent;
``unknown``, there and not in the table; ``duplicate``, there more often than the table says. One identity may have two.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from rmq_async.admin import Admin
from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.given import ask, column, options_for, refuse_replicas, refuse_topics, window
from rmq_async.spark.pipelines.job import (
    Progress,
    connection_options,
    moment,
    named_values,
    no_progress,
    run_job,
    whole_number,
)
from rmq_async.spark.pipelines.session import activate
from rmq_async.spark.rows import ID_PROPERTY

__all__ = ["ACKNOWLEDGED", "JOB", "KINDS", "OUTBOX", "Reconciled", "Reconciliation", "SentTable", "main", "reconcile"]

KINDS: Final = ("missing", "unacknowledged", "unknown", "duplicate")
ACKNOWLEDGED: Final = ("SEND_OK", "SENT")
"""States that say that a broker has taken the message, in any case."""

_SHOWN_STATES: Final = 8
_RETENTION: Final = "{} messages of these topics were deleted by retention, all before {}: what is missing may be among them"


@dataclass(frozen=True, kw_only=True)
class SentTable:
    """What the columns of the table of sent messages are called, and what their values mean.

    ``id``: message ids, or whatever ``by`` looks for. ``key`` and ``state`` may be None where the table has none; without states
    every row is acknowledged, as with the state "*". ``time``: when a row was sent. ``topic``: what it was sent to; rows of other
    topics than those looked at are left out.
    """

    id: str | None = "msgId"
    key: str | None = None
    state: str | None = "state"
    time: str | None = None
    topic: str | None = None
    acknowledged: Collection[str] = ACKNOWLEDGED


OUTBOX: Final = SentTable(id="unique_id", key="keys", state="state", time="updated", topic="topic")
"""The table of ``rmq_async.outbox``, or an export of it with these columns."""


@dataclass(frozen=True)
class Reconciled:
    """``sent``, ``acknowledged``: rows of the table. ``messages``: of the topic. ``matched``: acknowledged rows that are there.
    Then the findings of each kind; ``copies``: messages that are too many. ``without_id``: acknowledged rows that cannot be looked
    for; ``messages_without_id``: messages that cannot be. ``deleted``: messages that the topic held once and retention took,
    before ``oldest``: where there are some, what is missing may be among them."""

    sent: int
    acknowledged: int
    messages: int
    matched: int
    missing: int
    unacknowledged: int
    unknown: int
    duplicate: int
    copies: int
    without_id: int
    messages_without_id: int
    deleted: int
    oldest: datetime | None
    failed: bool


@dataclass(frozen=True)
class Reconciliation:
    """``findings``: kind, id, key, state, sent (rows), acknowledged (rows), count (messages), places (the first and the last, as
    topic/broker/queue/offset), firstStored, lastStored. It is kept on the executors' disks until ``findings.unpersist()``, or read
    from the path it was written to."""

    findings: DataFrame
    summary: Reconciled


def reconcile(
    spark: SparkSession,
    sent: DataFrame,
    topics: str,
    options: Mapping[str, str],
    *,
    by: str = "id",
    table: SentTable | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    slack: timedelta = timedelta(minutes=1),
    fail_on: Collection[str] = ("missing",),
    out: str | None = None,
    progress: Progress = no_progress,
) -> Reconciliation:
    """Compares ``sent`` with what ``topics`` (several with ",") hold.

    ``by``: "id", the message id; "key", each key of a message; "spark-id", its RMQ_SPARK_ID; "property:NAME". By key the table may
    name a key as often as it was sent, otherwise an identity is one message however many rows it has. ``options``: of format
    rocketmq. ``since``, ``until``: aware, of store time, and of the table's ``time`` if there is one. Then ``slack`` is for what
    was sent on one side of an edge and stored on the other: so much more of both is looked at, without findings of its own.
    ``fail_on``: kinds that make the summary ``failed``; acknowledged rows without an identity always do. ``out``: where to write
    the findings as Parquet, a path that does not exist.

    Raises ConfigError, also where no row is acknowledged although there are rows: that is a wrong name of a state; and what
    Spark raises.
    """
    table = table or SentTable()
    _check(by, fail_on, table)
    activate(spark)
    refuse_topics(options)
    refuse_replicas(options, "acknowledged ones would be called missing")
    inside = window(since, until)
    if table.time is None:
        slack = timedelta()
    if inside and slack:
        inside = window(since and since - slack, until and until + slack)
    if table.topic is not None:
        sent = sent.where(column("topic column", table.topic, sent.columns).isin([name.strip() for name in topics.split(",")]))
    rows = _rows(sent, by, table, since, until, slack).persist(StorageLevel.DISK_ONLY)
    findings: DataFrame | None = None
    try:
        totals = _totals(rows)
        progress({"step": "table", "rows": totals["sent"], "acknowledged": totals["acknowledged"]})
        if totals["sent"] and not totals["acknowledged"]:
            raise ConfigError(_no_state(sent, table))
        columns = "topic,brokerName,queueId,offset,msgId,keys,storeTimestamp"
        if by not in ("id", "key"):
            columns += ",properties"
        reading = options_for("batch read", options, subscribe=topics, columns=columns, **inside)
        messages = _messages(spark.read.format("rocketmq").options(**reading).load(), by, since, until)
        seen = Observation("reconcile")
        findings = _findings(rows.join(messages, "identity", "full_outer"), seen, by)
        if out is not None:
            findings.write.parquet(out)
            findings = spark.read.parquet(out)
        else:
            findings = findings.persist(StorageLevel.DISK_ONLY)
            findings.count()
        summary = _summary(totals, seen.get, _deleted(options, topics), fail_on)
        progress({"step": "topic", "messages": summary.messages, "findings": sum(getattr(summary, kind) for kind in KINDS)})
        return Reconciliation(findings, summary)
    except BaseException:
        if findings is not None:
            findings.unpersist()
        raise
    finally:
        rows.unpersist()


def _check(by: str, fail_on: Collection[str], table: SentTable) -> None:
    if by not in ("id", "key", "spark-id") and not (by.startswith("property:") and by != "property:"):
        raise ConfigError(f"by must be id, key, spark-id or property:NAME, not {by}")
    if wrong := sorted(set(fail_on) - set(KINDS)):
        raise ConfigError(f"fail_on: {wrong[0]} is none of {', '.join(KINDS)}")
    if (table.key if by == "key" else table.id) is None:
        raise ConfigError(f"by {by}: no column of the table is named to look for")


# -- the table


def _rows(
    sent: DataFrame, by: str, table: SentTable, since: datetime | None, until: datetime | None, slack: timedelta
) -> DataFrame:
    """By ``identity``, NULL for none: ``id``, ``key``, ``state``, ``rows``, ``acked``, ``due``: acknowledged rows in the window."""
    state = _state(sent, table)
    acknowledged = sql.lit(True)
    if table.state is not None and "*" not in table.acknowledged:
        wanted = [text.strip().upper() for text in table.acknowledged]
        acknowledged = sql.coalesce(sql.upper(sql.trim(state)).isin(wanted), sql.lit(False))
    due = sql.lit(True)
    if table.time is not None:
        moment = column("time column", table.time, sent.columns).cast("timestamp_ltz")
        sent = sent.where(_between(moment, since and since - slack, until and until + slack))
        due = _between(moment, since, until)
    name = table.key if by == "key" else table.id
    assert name is not None
    plain = sent.select(
        _text(column("key column" if by == "key" else "id column", name, sent.columns)).alias("identity"),
        _optional("id column", table.id, sent).alias("id"),
        _optional("key column", table.key, sent).alias("key"),
        state.alias("state"),
        acknowledged.alias("acknowledged"),
        due.alias("due"),
    )
    return plain.groupBy("identity").agg(
        sql.min("id").alias("id"),
        sql.min("key").alias("key"),
        sql.coalesce(sql.max(sql.when(sql.col("acknowledged"), sql.col("state"))), sql.max("state")).alias("state"),
        sql.count(sql.lit(1)).alias("rows"),
        sql.count_if("acknowledged").alias("acked"),
        sql.count_if(sql.col("acknowledged") & sql.col("due")).alias("due"),
    )


def _state(sent: DataFrame, table: SentTable) -> Column:
    return _optional("state column", table.state, sent)


def _optional(option: str, name: str | None, sent: DataFrame) -> Column:
    return sql.lit(None).cast("string") if name is None else column(option, name, sent.columns).cast("string")


def _text(found: Column) -> Column:
    text = sql.trim(found.cast("string"))
    return sql.when(text != "", text)


def _between(moment: Column, since: datetime | None, until: datetime | None) -> Column:
    """Never NULL."""
    inside = sql.lit(True)
    if since is not None:
        inside = inside & (moment >= sql.lit(since))
    if until is not None:
        inside = inside & (moment < sql.lit(until))
    return sql.coalesce(inside, sql.lit(False))


def _totals(rows: DataFrame) -> dict[str, int]:
    """Reads the table."""
    counts = {
        "sent": sql.sum("rows"),
        "acknowledged": sql.sum("acked"),
        "without_id": sql.sum(sql.when(sql.col("identity").isNull(), sql.col("due"))),
    }
    row = rows.agg(*(sql.coalesce(count, sql.lit(0)).alias(name) for name, count in counts.items())).first()
    assert row is not None
    return row.asDict()


def _no_state(sent: DataFrame, table: SentTable) -> str:
    there = sent.select(_state(sent, table).alias("state")).distinct().limit(_SHOWN_STATES).collect()
    states = ", ".join(sorted(str(row.state) for row in there))
    return f"no row is acknowledged: column {table.state} holds {states}, and {', '.join(table.acknowledged)} would mean that"


# -- the topic


def _messages(topic: DataFrame, by: str, since: datetime | None, until: datetime | None) -> DataFrame:
    """By ``identity``, NULL for none: ``present``, ``within``: those stored in the window, ``first``, ``last``."""
    identity: Column
    match by:
        case "id":
            identity = sql.col("msgId")
        case "key":
            identity = sql.explode_outer(sql.filter(sql.split("keys", " "), lambda key: key != ""))
        case "spark-id":
            identity = sql.col("properties")[ID_PROPERTY]
        case _:
            identity = sql.col("properties")[by.partition(":")[2]]
    place = sql.concat_ws("/", "topic", "brokerName", sql.col("queueId").cast("string"), sql.col("offset").cast("string"))
    stored = sql.struct("storeTimestamp", place.alias("place"))
    plain = topic.select(
        identity.alias("identity"), "msgId", "keys", stored.alias("stored"),
        _between(sql.col("storeTimestamp"), since, until).alias("within"),
    )  # fmt: skip
    return (
        plain.withColumn("identity", _text(sql.col("identity")))
        .groupBy("identity")
        .agg(
            sql.min("msgId").alias("msgId"),
            sql.min("keys").alias("keys"),
            sql.count(sql.lit(1)).alias("present"),
            sql.count_if("within").alias("within"),
            sql.min("stored").alias("first"),
            sql.max("stored").alias("last"),
        )
    )


def _deleted(options: Mapping[str, str], topics: str) -> int:
    async def count(admin: Admin) -> int:
        stats = [await admin.topic_stats(topic.strip()) for topic in topics.split(",")]
        return sum(queue.min_offset for one in stats for queue in one.queues.values())

    return ask(options, count)


# -- both


def _findings(joined: DataFrame, seen: Observation, by: str) -> DataFrame:
    """A row per identity and kind; ``seen`` counts on the way."""
    numbers = joined.fillna(0, ["rows", "acked", "due", "present", "within"])
    there = sql.col("identity").isNotNull()
    many = by == "key"
    one = sql.lit(1)
    acked = sql.col("acked") if many else sql.least("acked", one)
    rows = sql.col("rows") if many else sql.least("rows", one)
    due = sql.col("due") if many else sql.least("due", one)
    present, within = sql.col("present"), sql.col("within")
    copies = sql.when(within > 0, sql.greatest(present - sql.greatest(rows, one), sql.lit(0))).otherwise(0)
    kinds = {
        "missing": (due > 0) & (present < acked),
        "unacknowledged": (within > 0) & (present > acked) & (rows > acked),
        "unknown": (within > 0) & (rows == 0),
        "duplicate": copies > 0,
    }
    counts = {
        "messages": sql.sum("within"),
        "messages_without_id": sql.sum(sql.when(~there, within)),
        "matched": sql.sum(sql.when(there, sql.least(acked, present))),
        "copies": sql.sum(sql.when(there, copies)),
        **{kind: sql.count_if(there & found) for kind, found in kinds.items()},
    }
    oldest = sql.min("first")["storeTimestamp"].alias("oldest")
    counted = numbers.observe(seen, *(sql.coalesce(count, sql.lit(0)).alias(name) for name, count in counts.items()), oldest)
    found = sql.array_compact(sql.array(*(sql.when(there & found, sql.lit(kind)) for kind, found in kinds.items())))
    first, last = sql.col("first"), sql.col("last")
    return counted.select(
        sql.explode(found).alias("kind"),
        (sql.col("identity") if by == "id" else sql.coalesce("id", "msgId") if many else sql.col("identity")).alias("id"),
        (sql.col("identity") if many else sql.coalesce("key", "keys")).alias("key"),
        "state",
        sql.col("rows").alias("sent"),
        sql.col("acked").alias("acknowledged"),
        present.alias("count"),
        sql.array_compact(sql.array(first["place"], sql.when(present > 1, last["place"]))).alias("places"),
        first["storeTimestamp"].alias("firstStored"),
        last["storeTimestamp"].alias("lastStored"),
    )


def _summary(totals: Mapping[str, Any], seen: Mapping[str, Any], deleted: int, fail_on: Collection[str]) -> Reconciled:
    counts = dict(seen)
    failed = totals["without_id"] > 0 or any(counts[kind] for kind in fail_on)
    counts["oldest"] = _in_utc(counts["oldest"])
    return Reconciled(**totals, **counts, deleted=deleted, failed=failed)


def _in_utc(value: Any) -> Any:
    """A time that Spark gave, which is local and does not say so; anything else as it is."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


class _Reconcile:
    DESCRIPTION = (
        "What a table says was sent against what topics hold: missing, unacknowledged, unknown, duplicate. "
        "Ends with 1 where something acknowledged is missing. Messages that retention has taken are missing too: the summary "
        "counts all that it ever took (deleted) and says when the oldest one that is left was stored."
    )

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--topic", required=True, metavar="TOPIC[,...]", help="what the messages were sent to")
        table = parser.add_argument_group("the table of sent messages")
        table.add_argument("--sent", metavar="PATH", help="where it is; not needed by every format")
        table.add_argument("--format", default="parquet", help="any that Spark reads: parquet, csv, jdbc; default: %(default)s")
        table.add_argument(
            "--read-option", action="append", default=[], metavar="NAME=VALUE", help="an option of that format; may be repeated"
        )
        table.add_argument(
            "--outbox", action="store_true",
            help=f"it is an outbox of rmq_async.outbox: columns {OUTBOX.id}, {OUTBOX.key}, {OUTBOX.state}, {OUTBOX.time} (time) "
            f"and {OUTBOX.topic} unless others are named",
        )  # fmt: skip
        table.add_argument("--id-column", metavar="NAME", help=f"message ids; default: {SentTable.id}")
        table.add_argument("--key-column", metavar="NAME", help="keys; needed for --by key")
        table.add_argument("--state-column", metavar="NAME", help=f"states; default: {SentTable.state}")
        table.add_argument(
            "--time-column", metavar="NAME", help="when a row was sent: --from and --to are for the table as well"
        )
        table.add_argument("--topic-column", metavar="NAME", help="what it was sent to: rows of other topics are left out")
        table.add_argument(
            "--acknowledged", type=_names, default=list(ACKNOWLEDGED), metavar="STATE[,...]",
            help="states that say it was sent, in any case; *: all, also without such a column; default: SEND_OK,SENT",
        )  # fmt: skip
        table.add_argument("--where", metavar="SQL", help="only these rows")
        parser.add_argument(
            "--by", default="id", help="what to look for: id, key, spark-id or property:NAME; default: %(default)s"
        )
        parser.add_argument("--from", dest="since", type=moment, metavar="WHEN", help="only what was stored then or later")
        parser.add_argument("--to", dest="until", type=moment, metavar="WHEN", help="only what was stored before")
        parser.add_argument(
            "--slack", type=whole_number(0, 86400), default=60, metavar="SECONDS",
            help="with --time-column: how much later than it was sent a message may be stored; default: %(default)s",
        )  # fmt: skip
        parser.add_argument("--out", metavar="PATH", help="write the findings there as Parquet; must not exist")
        parser.add_argument(
            "--fail-on", type=_kinds, default=[], metavar="KIND[,...]",
            help="end with 1 for these as well: duplicate, unacknowledged, unknown",
        )  # fmt: skip
        parser.add_argument(
            "--show", type=whole_number(0, 100_000), default=20, metavar="N", help="findings to print; default: %(default)s"
        )

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> Reconciled:
        reader = spark.read.format(given.format)
        if given.format.lower() == "csv":
            reader = reader.option("header", "true")
        sent = reader.options(**named_values("--read-option", given.read_option)).load(given.sent)
        if given.where is not None:
            sent = sent.where(given.where)
        table = _table(given, sent.columns)
        found = reconcile(
            spark,
            sent,
            given.topic,
            connection_options(given),
            by=given.by,
            table=table,
            since=given.since,
            until=given.until,
            slack=timedelta(seconds=given.slack),
            fail_on=("missing", *given.fail_on),
            out=given.out,
            progress=progress,
        )
        worst_first = sql.array_position(sql.array(*map(sql.lit, KINDS)), sql.col("kind"))
        for row in found.findings.orderBy(worst_first, "id").limit(given.show).collect() if given.show else ():
            progress({name: _in_utc(value) for name, value in row.asDict().items() if value not in (None, [])})
        found.findings.unpersist()
        summary = found.summary
        if summary.missing and summary.deleted:
            progress({"note": _RETENTION.format(summary.deleted, summary.oldest)})
        return summary


def _table(given: argparse.Namespace, columns: Sequence[str]) -> SentTable:
    """What the arguments say, else what an outbox or any table has. The id and the state may be absent where nothing needs them."""
    preset = OUTBOX if given.outbox else SentTable()
    there = {name.lower() for name in columns}
    identity, state = given.id_column or preset.id, given.state_column or preset.state
    assert identity is not None
    assert state is not None
    return SentTable(
        id=None if given.by == "key" and identity.lower() not in there else identity,
        key=given.key_column or preset.key,
        state=None if "*" in given.acknowledged and state.lower() not in there else state,
        time=given.time_column or preset.time,
        topic=given.topic_column or preset.topic,
        acknowledged=tuple(given.acknowledged),
    )


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("names nothing")
    return names


def _kinds(text: str) -> list[str]:
    kinds = [name[:-1] if name == "duplicates" else name for name in _names(text)]
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(KINDS)}, not {kind}")
    return kinds


JOB: Final = _Reconcile()


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job("reconcile", JOB, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
