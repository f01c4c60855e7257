"""Compares a table of sent messages with a topic, to check that every acknowledged message exists exactly once.

    rmq spark reconcile --topic orders --sent sent.parquet --id-column message_id
    rmq spark reconcile --topic orders --outbox --format jdbc --read-option url=jdbc:postgresql://db/shop ...

The comparison is one full outer join of two aggregates by identity: the rows of the table and the messages of the topic. Both
are shuffled and spill to disk. No column is built for bodies, and the driver gets only the figures and the findings to print.
The table is read before the ends of the queues are requested, so that a row that is acknowledged in between is not reported as
missing.

There are four kinds of findings. ``missing``: the topic has fewer messages than there are acknowledged rows.
``unacknowledged``: there are more messages than acknowledged rows, and some rows are not acknowledged (yet). ``unknown``: the
identity is in the topic but not in the table. ``duplicate``: there is more than one message, and there are more messages than
rows. All rows with one identity count as one, except by key. One identity may have two findings.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sql

from rmq_async.admin import Admin
from rmq_async.errors import ConfigError
from rmq_async.spark.options import read_options
from rmq_async.spark.pipelines import job
from rmq_async.spark.pipelines import reconcile_frames as frames
from rmq_async.spark.pipelines.arguments import ask, check_topics, column, options_for, refuse_replicas, refuse_topics, window
from rmq_async.spark.pipelines.job import Progress, no_progress
from rmq_async.spark.pipelines.reconcile_frames import ACKNOWLEDGED, OUTBOX, SentTable
from rmq_async.spark.pipelines.session import activate

KINDS: Final = ("missing", "unacknowledged", "unknown", "duplicate")
_RETENTION: Final = "{} messages of these topics were deleted by retention, all before {}: missing messages may be among them"


@dataclass(frozen=True)
class Reconciled:
    """The result of one run.

    Attributes:
        sent: Number of rows of the table, including rows in the ``slack``.
        acknowledged: Number of these rows that a broker has acknowledged.
        messages: Number of messages of the topics in the window; by key, a message counts for each of its keys.
        matched: Number of acknowledged rows that have a message. Except by key, rows with one identity count as one. The next
            four fields count the findings of each kind.
        copies: Number of surplus messages: those beyond one message per identity or, by key, beyond the number of its rows.
        without_id: Number of acknowledged rows in the window that have no identity.
        messages_without_id: Number of messages in the window that have no id.
        deleted: Number of offsets before the first messages of the topics' queues. Missing messages may have been at these
            offsets.
        oldest: Store time of the oldest message that was read. None if no message was read.
        failed: Whether there are findings of ``fail_on``, or ``without_id`` is above 0.
    """

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
    """The result of a comparison.

    Attributes:
        findings: A DataFrame with the columns kind, id, key, state, sent (number of rows), acknowledged (number of rows), count
            (number of messages), places (of the first and the last message, as topic/broker/queue/offset), firstStored and
            lastStored. It is kept on the executors' disks until ``findings.unpersist()``, or is read from the path to which it
            was written.
    """

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
    out: str | PathLike[str] | None = None,
    progress: Progress = no_progress,
) -> Reconciliation:
    """Compare ``sent`` with the messages in ``topics`` (several topics are separated by ",").

    Args:
        by: The identity of a message: "id" (the message id), "key" (each of its keys), "spark-id" (its RMQ_SPARK_ID) or
            "property:NAME". By key, the table may have a row for each message with that key. Otherwise, all rows with one
            identity count as one message.
        options: Options of format rocketmq.
        table: The columns of ``sent``. The default is ``SentTable()``.
        since: Start (inclusive, an aware datetime) of the range of store times and, if the table has a ``time``, of these
            times. None stands for no limit.
        until: End of this range (exclusive, an aware datetime). None stands for no limit.
        slack: If the table has a ``time``, the range is extended by ``slack`` on both sides, for messages that were sent on one
            side of an edge and stored on the other. Rows and messages that are only in the extension cause no findings by
            themselves: a "missing" finding requires an acknowledged row inside the range, and the other kinds require a message
            inside it.
        fail_on: Kinds of findings that make the summary ``failed``. Acknowledged rows inside the range without an identity
            always make it ``failed``.
        out: Path for the findings as Parquet, which must not exist. If None, the findings are kept on the executors' disks.
        progress: Called once for the table and once for the topics.

    Raises:
        ConfigError: For an unknown ``by`` or ``fail_on``, for a column that ``table`` does not name or that ``sent`` does not
            have, for a naive time or an empty range, for an option that names topics, and for ``offsetsFromReplicas``. Also if
            there are rows but no acknowledged row, which suggests that the name of a state is wrong. The errors of requests to
            the cluster and of Spark are raised, too.
    """
    table = table or SentTable()
    _check(by, fail_on, table)
    activate(spark)
    _check_options(options)
    if table.time is None:
        slack = timedelta()
    inside = _window(since, until, slack)
    if table.topic is not None:
        sent = sent.where(column("topic column", table.topic, sent.columns).isin([name.strip() for name in topics.split(",")]))
    rows = frames.table_rows(sent, by, table, since, until, slack).persist(StorageLevel.DISK_ONLY)
    findings: DataFrame | None = None
    try:
        totals = frames.totals_of(rows)
        progress({"step": "table", "rows": totals["sent"], "acknowledged": totals["acknowledged"]})
        if totals["sent"] and not totals["acknowledged"]:
            raise ConfigError(frames.no_state(sent, table))
        columns = "topic,brokerName,queueId,offset,msgId,keys,storeTimestamp"
        if by not in ("id", "key"):
            columns += ",properties"
        reading = options_for("batch read", options, subscribe=topics, columns=columns, **inside)
        messages = frames.topic_messages(spark.read.format("rocketmq").options(**reading).load(), by, since, until)
        seen = Observation("reconcile")
        findings = frames.findings_of(rows.join(messages, "identity", "full_outer"), seen, by)
        findings = _kept(spark, findings, out)
        summary = _summary(totals, seen.get, _deleted(options, topics), fail_on)
        progress({"step": "topic", "messages": summary.messages, "findings": sum(getattr(summary, kind) for kind in KINDS)})
        return Reconciliation(findings, summary)
    except BaseException:
        if findings is not None:
            findings.unpersist()
        raise
    finally:
        rows.unpersist()


def _window(since: datetime | None, until: datetime | None, slack: timedelta) -> dict[str, str]:
    """Return the options for a read of the window, which is extended by ``slack`` on both sides.

    Raises:
        ConfigError: For an empty window and for a time without a zone.
    """
    exact = window(since, until)
    return window(since and since - slack, until and until + slack) if exact and slack else exact


def _kept(spark: SparkSession, findings: DataFrame, out: str | PathLike[str] | None) -> DataFrame:
    """Compute the findings once. Write them to ``out``, or keep them on the executors' disks."""
    if out is not None:
        findings.write.parquet(fspath(out))
        return spark.read.parquet(fspath(out))
    kept = findings.persist(StorageLevel.DISK_ONLY)
    kept.count()
    return kept


def _check_options(options: Mapping[str, str]) -> None:
    refuse_topics(options)
    refuse_replicas(options, "acknowledged messages would be reported as missing")


def _check_by(by: str, fail_on: Collection[str]) -> None:
    if by not in ("id", "key", "spark-id") and not (by.startswith("property:") and by != "property:"):
        raise ConfigError(f"by must be id, key, spark-id or property:NAME, not {by!r}")
    if wrong := sorted(set(fail_on) - set(KINDS)):
        raise ConfigError(f"fail_on must name only {', '.join(KINDS)}, not {wrong[0]!r}")


def _check(by: str, fail_on: Collection[str], table: SentTable) -> None:
    _check_by(by, fail_on)
    if (table.key if by == "key" else table.id) is None:
        needed = "key= (--key-column)" if by == "key" else "id= (--id-column)"
        raise ConfigError(f"by {by}: no column of the table is given for it; give one with {needed}")


def _deleted(options: Mapping[str, str], topics: str) -> int:
    async def count(admin: Admin) -> int:
        stats = [await admin.topic_stats(topic.strip()) for topic in topics.split(",")]
        return sum(queue.min_offset for one in stats for queue in one.queues.values())

    return ask(options, count)


def _summary(totals: Mapping[str, Any], seen: Mapping[str, Any], deleted: int, fail_on: Collection[str]) -> Reconciled:
    counts = dict(seen)
    failed = totals["without_id"] > 0 or any(counts[kind] for kind in fail_on)
    counts["oldest"] = _in_utc(counts["oldest"])
    return Reconciled(**totals, **counts, deleted=deleted, failed=failed)


def _in_utc(value: Any) -> Any:
    """Convert a time from Spark, which is local and naive, to UTC. Return other values unchanged."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


class _Reconcile:
    DESCRIPTION = (
        "Compare a table of sent messages with topics: missing, unacknowledged, unknown, duplicate. "
        "The exit code is 1 if an acknowledged message is missing. Messages that retention has deleted are missing too: the "
        "summary has the number of all deleted messages (deleted) and the store time of the oldest existing message."
    )

    EXAMPLES = """
        rmq spark reconcile --topic Orders --sent sent.parquet --out findings
        rmq spark reconcile --topic Orders,Payments --sent sent.csv --format csv --by key --key-column id --acknowledged '*'
        rmq spark reconcile --outbox --topic Orders --format json --sent outbox.json --from 2026-11-21T00:00:00Z
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--topic", required=True, metavar="TOPIC[,...]", help="topics to compare with")
        table = parser.add_argument_group("the table of sent messages")
        table.add_argument("--sent", metavar="PATH", help="path of the table; not needed by every format")
        table.add_argument("--format", default="parquet", help="a format of Spark: parquet, csv, jdbc; default: %(default)s")
        table.add_argument(
            "--read-option", **job.SEVERAL, metavar="NAME=VALUE", help="an option of that format; may be repeated"
        )
        table.add_argument(
            "--outbox", action="store_true",
            help=f"the table is an outbox of rmq_async.outbox: columns {OUTBOX.id}, {OUTBOX.key}, {OUTBOX.state}, {OUTBOX.time} "
            f"(time) and {OUTBOX.topic} unless others are named",
        )  # fmt: skip
        table.add_argument("--id-column", metavar="NAME", help=f"message ids; default: {SentTable.id}")
        table.add_argument("--key-column", metavar="NAME", help="keys; needed for --by key")
        table.add_argument("--state-column", metavar="NAME", help=f"states; default: {SentTable.state}")
        table.add_argument(
            "--time-column", metavar="NAME", help="send times; with them, --from and --to also apply to the table"
        )
        table.add_argument("--topic-column", metavar="NAME", help="target topics; rows of other topics are left out")
        table.add_argument(
            "--acknowledged", type=_names, default=list(ACKNOWLEDGED), metavar="STATE[,...]",
            help="states of acknowledged rows, case-insensitive; *: all rows, with or without states; default: SEND_OK,SENT",
        )  # fmt: skip
        table.add_argument("--where", metavar="SQL", help="only these rows")
        add("--by", default="id", help="identity of a message: id, key, spark-id or property:NAME; default: %(default)s")
        add("--from", dest="since", type=job.moment, metavar="WHEN", help="only messages stored then or later")
        add("--to", dest="until", type=job.moment, metavar="WHEN", help="only messages stored before")
        add(
            "--slack", type=job.whole_number(0, 86400), default=60, metavar="SECONDS",
            help="with --time-column: maximum time from the send of a message to its storage; default: %(default)s",
        )  # fmt: skip
        add("--out", metavar="PATH", help="write the findings there as Parquet; must not exist")
        add(
            "--fail-on", type=_kinds, default=[], metavar="KIND[,...]",
            help="exit code 1 for these kinds too: duplicate, unacknowledged, unknown",
        )  # fmt: skip
        add(
            "--show", type=job.whole_number(0, 100_000), default=20, metavar="N", help="findings to print; default: %(default)s"
        )

    def check(self, given: argparse.Namespace) -> None:
        """Check the arguments that can be checked without Spark, and that the topics exist."""
        options = job.connection_options(given)
        _check_by(given.by, given.fail_on)
        _check_options(options)
        reading = options_for("batch read", options, subscribe=given.topic, **_window(given.since, given.until, timedelta()))
        read_options(reading, streaming=False)
        check_topics(options, [name.strip() for name in given.topic.split(",")])

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> Reconciled:
        reader = spark.read.format(given.format)
        if given.format.lower() == "csv":
            reader = reader.option("header", "true")
        sent = reader.options(**job.named_values("--read-option", given.read_option)).load(given.sent)
        if given.where is not None:
            sent = sent.where(given.where)
        table = _table(given, sent.columns)
        found = reconcile(
            spark,
            sent,
            given.topic,
            job.connection_options(given),
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
    """Return the columns that the arguments name. For other columns, use the columns of an outbox or the defaults.

    Id and state are None if they are not needed and not among ``columns``.
    """
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
        raise argparse.ArgumentTypeError(f"must be names separated by commas, not {text!r}")
    return names


def _kinds(text: str) -> list[str]:
    kinds = [name[:-1] if name == "duplicates" else name for name in _names(text)]
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(KINDS)}, not {kind!r}")
    return kinds


JOB: Final = _Reconcile()


def main(arguments: Sequence[str] | None = None) -> int:
    return job.run_job("reconcile", JOB, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
