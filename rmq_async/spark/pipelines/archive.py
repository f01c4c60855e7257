"""Archives topics as Parquet, exactly once, with a streaming query that ends when it has read all messages that existed at its
start.

The checkpoint records the offsets that were read. The log ``_spark_metadata``, which is next to the files, records the files
that were written: a file that it does not list belongs to a failed attempt, and Spark's reader skips it. Checkpoint and log
must belong to the same query, but Spark does not check that: if a sink's log has batches that the checkpoint lacks, the sink
skips the same number of new batches without an error. Therefore, this module checks both before it starts the query.

To run it as a program, call ``rmq spark archive`` or pass this file to ``spark-submit``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike, fspath
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery

from rmq_async.errors import ConfigError
from rmq_async.spark.options import read_options
from rmq_async.spark.pipelines import job
from rmq_async.spark.pipelines.arguments import check_topics as check_topics_there
from rmq_async.spark.pipelines.arguments import refuse_topics
from rmq_async.spark.pipelines.compaction import check_store, compact
from rmq_async.spark.pipelines.files import Files
from rmq_async.spark.pipelines.job import Progress, no_progress
from rmq_async.spark.pipelines.session import activate
from rmq_async.spark.schema import SOURCE_COLUMNS, source_ddl

ARCHIVE_DDL: Final = f"{source_ddl(tuple(SOURCE_COLUMNS))}, `date` date"
"""The schema of an archive. Readers need it, because without a schema Spark reads a topic named 007 as the number 7."""

SOURCE_DDL: Final = source_ddl(tuple(name for name in SOURCE_COLUMNS if name != "topic"))
"""The schema of the files. The topic and the date are in the names of their directories."""
SINK_LOG: Final = "_spark_metadata"
POLL: Final = 0.25
DATE: Final = "date_from_unix_date(cast(unix_seconds(storeTimestamp) div 86400 as int))"
"""The date in UTC, independent of the session's time zone."""


@dataclass(frozen=True, kw_only=True)
class ArchiveSummary:
    """The result of one run.

    Attributes:
        bytes: Size of the added bodies.
        compacted: Number of small files that were rewritten into larger ones.
        offsets: The start and the exclusive end of the offsets that were read, by queue.
    """

    path: str
    checkpoint: str
    topics: tuple[str, ...]
    messages: int
    bytes: int
    batches: int
    compacted: int
    seconds: float
    offsets: Mapping[str, tuple[int, int]]
    failed: bool = False


def archive(
    spark: SparkSession,
    topics: str | Iterable[str],
    path: str | PathLike[str],
    *,
    pattern: str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    starting: str | datetime = "earliest",
    max_offsets: int | None = None,
    tags: str | None = None,
    files: int | None = None,
    compression: str = "snappy",
    compacting: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> ArchiveSummary:
    """Add the messages of ``topics`` that the archive lacks, with all columns, partitioned by topic and date (UTC, of the store
    time).

    With ``compacting``, raise PipelineError after the run if the rewritten files hold a different number of rows than the small
    files. Also raise the errors of Spark, whose text names the cause, such as an invalid option.

    Args:
        pattern: A regular expression for whole names of topics. It requires () as ``topics``.
        checkpoint: Path at which Spark records the positions that were read. The default is PATH/_checkpoint. Use the same path
            for the lifetime of the archive.
        starting: Start of the first run: "earliest", "latest" or a time (a naive time is UTC). Later runs start where the
            previous run ended.
        max_offsets: Maximum number of offsets in a micro-batch. None stands for no limit.
        tags: A tag expression such as "a || b". None stands for all messages.
        files: Maximum number of files per topic and date in a micro-batch. None stands for no limit.
        compression: The compression of the Parquet files, such as "zstd".
        compacting: True rewrites small files after the run: if a topic and date has two or more files below 32 MiB, they are
            combined into files of about 128 MiB. This only includes files that the newest ``.compact`` list of the archive
            names (Spark writes such a list with every tenth micro-batch by default). Then, Parquet files that are older than a
            day and that no list names are deleted.
        options: Options of format rocketmq.
        progress: Called once per micro-batch.

    Raises:
        ConfigError: If both or neither of ``topics`` and ``pattern`` are given, for an option that names columns or topics, if
            path, checkpoint and topics do not belong together, and for a session of Spark Connect. With ``compacting``, also
            for a store that is not known to rename files atomically and, after the run, for a log in an unknown form.
    """
    began = monotonic()
    wanted = (topics,) if isinstance(topics, str) else tuple(topics)
    _check(wanted, pattern, options or {})
    path = fspath(path)
    place = fspath(checkpoint or f"{path.rstrip('/')}/_checkpoint")
    activate(spark)
    store = Files(spark)
    if compacting:  # checked first, because the run may take hours
        check_store(path, store.scheme(path))
    before = _before(store, path, place, wanted, pattern)
    reading: dict[str, str | int | None] = {
        "subscribe": ",".join(wanted) or None,
        "subscribePattern": pattern,
        "maxOffsetsPerTrigger": max_offsets,
        "tags": tags,
        "maxPartitions": files,
        **_start_options(starting),
    }
    chosen = {name: str(value) for name, value in reading.items() if value is not None}
    frame = spark.readStream.format("rocketmq").options(**chosen).options(**options or {}).load()
    observed = frame.observe("archive", F.count(F.lit(1)).alias("rows"), F.sum(F.octet_length("body")).alias("bytes"))
    query = (
        observed.withColumn("date", F.expr(DATE))
        .writeStream.format("parquet")
        .option("path", path)
        .option("checkpointLocation", place)
        .option("compression", compression)
        .partitionBy("topic", "date")
        .trigger(availableNow=True)
        .start()
    )
    run = _Run(before, progress)
    try:
        run.follow(query)
    finally:
        if query.isActive:
            query.stop()
    compacted = compact(spark, path, SOURCE_DDL).before if compacting else 0
    return ArchiveSummary(
        path=path,
        checkpoint=place,
        topics=wanted or tuple(sorted({key.partition("/")[0] for key in run.ends})),
        messages=run.messages,
        bytes=run.bytes,
        batches=run.batches,
        compacted=compacted,
        seconds=round(monotonic() - began, 3),
        offsets={key: (run.starts.get(key, 0), end) for key, end in sorted(run.ends.items())},
    )


def _check(topics: Sequence[str], pattern: str | None, options: Mapping[str, str]) -> None:
    """Raise ConfigError if no topics are given, if both ``topics`` and ``pattern`` are given, and for options that an archive
    does not accept.
    """
    if bool(topics) == (pattern is not None):
        raise ConfigError(
            f"{'topics and a pattern are both given' if topics else 'nothing says what to archive'}; give either topics or a "
            "pattern of them"
        )
    if any(name.lower() == "columns" for name in options):
        raise ConfigError("option columns: an archive holds all columns; leave the option out")
    refuse_topics(options)


def _start_options(starting: str | datetime) -> dict[str, str | int]:
    if not isinstance(starting, datetime):
        return {"startingOffsets": starting}
    known = starting if starting.tzinfo is not None else starting.replace(tzinfo=UTC)
    return {"startingTimestamp": int(known.timestamp() * 1000), "startingOffsetsByTimestampStrategy": "latest"}


class _Run:
    """Counts the work of one query from its progress.

    Attributes:
        starts: The offset at which the query began, by queue.
        ends: The offset that the query has reached, by queue.
    """

    def __init__(self, before: Mapping[str, int], progress: Progress) -> None:
        self.messages = 0
        self.bytes = 0
        self.batches = 0
        self.starts = dict(before)
        self.ends = dict(before)
        self._progress = progress
        self._last: int | None = None

    def follow(self, query: StreamingQuery) -> None:
        """Wait until the query has ended. Raise its error if it failed."""
        while not query.awaitTermination(POLL):  # type: ignore[arg-type]  # it takes fractions of a second
            self._take(query)
        self._take(query)

    def _take(self, query: StreamingQuery) -> None:
        for each in query.recentProgress:
            if "addBatch" in each.durationMs and (self._last is None or each.batchId > self._last):
                self._last = each.batchId
                self._count(json.loads(each.json))

    def _count(self, batch: Mapping[str, Any]) -> None:
        source, figures = batch["sources"][0], batch.get("observedMetrics", {}).get("archive", {})
        start, end, latest = (_offset(source[name]) for name in ("startOffset", "endOffset", "latestOffset"))
        ends = end.get("q", {})
        first = end.get("init", {}) if batch["batchId"] == 0 else start.get("q", {})
        for key, offset in ends.items():
            self.starts.setdefault(key, first.get(key, 0))
            self.ends[key] = offset
        rows = figures.get("rows") or 0
        self.messages += rows
        self.bytes += figures.get("bytes") or 0
        self.batches += 1
        left = sum(max(offset - ends.get(key, 0), 0) for key, offset in latest.get("q", {}).items())
        self._progress(
            {"batch": batch["batchId"], "messages": rows, "left": left, "seconds": round(batch["batchDuration"] / 1000, 3)}
        )


def _offset(value: Any) -> dict[str, Any]:
    """Return an offset in the progress, which is an object or its JSON text, as a dict. Return an empty dict for
    anything else.
    """
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else {}


# -- whether path, checkpoint and topics belong together


def _before(files: Files, path: str, checkpoint: str, topics: Sequence[str], pattern: str | None) -> dict[str, int]:
    """Return the offsets by queue at which earlier runs ended.

    Raises:
        ConfigError: If path, checkpoint and topics do not belong together, so that this run cannot continue the earlier ones.
    """
    read, done = _numbers(files.names(f"{checkpoint}/offsets")), _numbers(files.names(f"{checkpoint}/commits"))
    content = files.names(path)
    check_pair(path, checkpoint, content, _numbers(files.names(f"{path}/{SINK_LOG}")), read, done)
    if not read:
        return {}
    known = known_offsets(files.text(f"{checkpoint}/offsets/{max(read)}"), checkpoint)
    check_topics(checkpoint, {key.partition("/")[0] for key in known}, topics, pattern)
    return known


def check_pair(
    path: str, checkpoint: str, content: Sequence[str] | None, written: Sequence[int], read: Sequence[int], done: Sequence[int]
) -> None:
    """Raise ConfigError if path and checkpoint do not belong together.

    Args:
        content: Names in the path.
        written: Numbers of the batches in the log of the path.
        read: Numbers of the batches that the checkpoint has begun.
        done: Numbers of the batches that the checkpoint has finished.
    """
    if written and (not read or max(written) > max(read)):
        known = f"knows {max(read) + 1}" if read else "is missing or empty"
        raise ConfigError(
            f"{path} holds an archive of {max(written) + 1} micro-batches, but its checkpoint {checkpoint} {known}: "
            "continuing would leave messages out; give the checkpoint that it was written with, or another path"
        )
    if done and (not written or max(written) < max(done)):
        there = f"holds {max(written) + 1}" if written else "holds none of them"
        raise ConfigError(
            f"checkpoint {checkpoint} says that {max(done) + 1} micro-batches are archived, but {path} {there}: "
            "give the path it was used with, or start again with another checkpoint"
        )
    if not written and not read and any(not name.startswith(("_", ".")) for name in content or ()):
        raise ConfigError(
            f"{path} is not empty and not an archive; give another path: readers of an archive see no other files"
        )


def check_topics(checkpoint: str, known: Iterable[str], topics: Sequence[str], pattern: str | None) -> None:
    """Raise ConfigError for a topic of the archive that this run leaves out. New topics are allowed."""
    missing = [name for name in sorted(known) if name not in topics and not (pattern and re.fullmatch(pattern, name))]
    if missing:
        asked = f"pattern {pattern!r}" if pattern else ", ".join(topics)
        raise ConfigError(
            f"checkpoint {checkpoint} belongs to an archive of topic {', '.join(missing)}, which {asked} does not include; "
            "give it too, or another path"
        )


def known_offsets(text: str, checkpoint: str) -> dict[str, int]:
    """Parse an entry of Spark's offset log. It has a line for the version, a line for Spark, and a line for each source.

    Raises:
        ConfigError: If the offsets do not belong to this source.
    """
    try:
        offsets = json.loads(text.splitlines()[-1])["q"]
        return {str(key): int(offset) for key, offset in offsets.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"checkpoint {checkpoint} does not belong to an archive of topics: its offsets are {text[-100:]!r}; give the "
            "checkpoint of the archive"
        ) from None


def _numbers(names: Sequence[str] | None) -> list[int]:
    """Return the numbers of the batches in a log of Spark. A file is named ``7`` for batch 7, or ``9.compact`` for all batches
    up to 9.
    """
    found = [re.fullmatch(r"([0-9]+)(?:\.compact)?", name) for name in names or ()]
    return [int(match[1]) for match in found if match]


# -- the command


def _starting(text: str) -> str | datetime:
    return text if text in ("earliest", "latest") else job.moment(text)


class _Archive:
    DESCRIPTION = (
        "Archive topics as Parquet, exactly once: add the messages that exist now and are not in the archive, and end.\n"
        "The files are partitioned by topic and date (UTC, by store time), and have every column of the source.\n"
        "The next run, for example by a timer, continues where the last one ended, also after a crash."
    )

    EXAMPLES = """
        rmq spark archive --topic Orders --path archive
        rmq spark archive --pattern 'Orders.*' --path s3a://bucket/archive --max-offsets 1000000 --files 4
        rmq spark archive --topic Orders --topic Payments --starting 2026-11-22T00:00:00Z --path archive --json
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("--topic", action="append", metavar="NAME", help="topic to archive; may be repeated")
        which.add_argument("--pattern", metavar="REGEX", help="topics whose whole name matches")
        add("--path", required=True, metavar="PATH", help="directory of the archive, on any store Spark writes to")
        add(
            "--checkpoint",
            metavar="PATH",
            help="records what was read, always the same for an archive; default: PATH/_checkpoint",
        )
        add(
            "--starting",
            type=_starting,
            default="earliest",
            metavar="WHERE",
            help="where the first run begins: earliest (default), latest, or a time such as 2026-11-22T08:30:00Z",
        )
        add("--max-offsets", type=job.whole_number(1, 10**15), metavar="N", help="maximum number of offsets per micro-batch")
        add("--tags", metavar="'a || b'", help="only messages with one of the tags")
        add(
            "--files",
            type=job.whole_number(1, 10**6),
            metavar="N",
            help="maximum number of files per topic, date and micro-batch",
        )
        add("--compression", default="snappy", choices=("none", "snappy", "zstd", "gzip", "lz4"), help="default: snappy")
        add(
            "--compact", action="store_true",
            help="rewrite small files of earlier runs into large ones afterwards (local and HDFS)",
        )  # fmt: skip
        parser.epilog = (
            "Read it in Python with spark.read.schema(ARCHIVE_DDL).parquet(PATH). ARCHIVE_DDL is in\n"
            "rmq_async.spark.pipelines.archive. Without a schema, Spark reads a topic named 0070 as the number 70.\n"
            "Other tools do not know _spark_metadata. They see messages twice after a failed run, and for a day\n"
            "after --compact."
        )

    def check(self, given: argparse.Namespace) -> None:
        """Check the arguments, and look up the topics that they name.

        Raise the errors of requests, too.

        Raises:
            ConfigError: For wrong arguments.
            TopicNotFoundError: For a topic that does not exist.
        """
        options, topics = job.connection_options(given), given.topic or ()
        _check(topics, given.pattern, options)
        if given.compact:
            check_store(given.path, urlsplit(given.path).scheme)
        subjects = {"subscribe": ",".join(topics)} if topics else {"subscribePattern": given.pattern}
        tags = {} if given.tags is None else {"tags": given.tags}
        read_options({**subjects, **tags, **options}, streaming=True)
        check_topics_there(options, topics)

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> ArchiveSummary:
        return archive(
            spark,
            given.topic or (),
            given.path,
            pattern=given.pattern,
            checkpoint=given.checkpoint,
            starting=given.starting,
            max_offsets=given.max_offsets,
            tags=given.tags,
            files=given.files,
            compression=given.compression,
            compacting=given.compact,
            options=job.connection_options(given),
            progress=progress,
        )


ARCHIVE: Final = _Archive()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rmq spark archive`` and return the exit code."""
    return job.run_job("archive", ARCHIVE, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
