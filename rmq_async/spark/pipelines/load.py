"""The pipeline of ``rmq spark load``: sends messages from the executors, in one mode after another, and reports the results.

Each mode is a Spark job of ``tasks`` tasks that begin together and whose counts go to result files; the topic's offsets
before and after it give the number of stored messages, to compare with the acknowledged ones. ``--report`` computes the
figures from the result files of any number of runs.

If a task of a barrier fails, Spark runs all of them again: the topic may then hold more messages than the counts say.
"""

from __future__ import annotations

import argparse
import logging
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic, sleep, time
from typing import Final

import pyarrow as pa
from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession

from rmq_async._text import printable
from rmq_async.admin import Admin
from rmq_async.errors import ConfigError, RocketMQError
from rmq_async.spark.options import WriteOptions, write_options
from rmq_async.spark.pipelines.arguments import ask, check_topics
from rmq_async.spark.pipelines.job import Progress, connection_options, no_progress, run_job, whole_number
from rmq_async.spark.pipelines.load_plot import needs_matplotlib, plot
from rmq_async.spark.pipelines.load_report import WHOLE, RunReport, read_results, report
from rmq_async.spark.pipelines.load_tasks import COLUMNS, MODES, STORED, LoadPlan, Result, results_of
from rmq_async.spark.pipelines.outgoing import Arrivals, access_for, target_queues, watched
from rmq_async.spark.pipelines.session import master_of, parallelism

__all__ = ["LoadSummary", "load", "main"]

logger = logging.getLogger(__name__)

DEFAULT_GROUP: Final = "spark-rocketmq-load"
OTHERS: Final = ("idColumn", "batchBytes", "maxMessagesPerSecond")
"""Options of a write that a load refuses, because it has no table or has arguments for them."""
MAX_BATCH: Final = 4 * 1024 * 1024
ALL_HERE: Final = 1.1
"""Seconds until every task has left the barrier: Spark polls once a second."""
SETTLED: Final = 0.2
_TYPES: Final = (
    *(pa.string(), pa.int32(), pa.string(), pa.int32(), pa.string(), pa.int64(), pa.int64()),
    *(pa.map_(pa.int32(), pa.int64()), pa.float64(), pa.float64(), pa.float64()),
)
"""Types of the columns of a Result."""
PATIENCE: Final = 5.0
"""Seconds to wait, at most, until a topic grows no more: a broker stores one-way messages a moment after it has read them."""


@dataclass(frozen=True)
class LoadSummary:
    """The result of a load: figures of all ``runs`` together, in messages.

    ``acknowledged``: by a broker; ``handed_over``: one-way messages whose send did not fail. ``missed``: messages that were due
    and not begun in time. ``lost``: by how many messages the topic grew less than were acknowledged, summed over the modes with
    a known growth. ``problems``: sentences that say why the load failed. ``results``: path of the result files; ``plot``: path
    for the picture, None if none was asked for. ``topic``: None for a report. ``seconds``: duration of the command.
    """

    runs: int
    attempted: int
    acknowledged: int
    handed_over: int
    failed_messages: int
    missed: int
    lost: int
    problems: Sequence[str]
    results: str
    plot: str | None
    topic: str | None
    seconds: float

    @property
    def failed(self) -> bool:
        return bool(self.problems)

    @classmethod
    def of(cls, reports: Sequence[RunReport], given: argparse.Namespace, seconds: float) -> LoadSummary:
        """Adds up the reports of a command. ``given``: its arguments."""
        return cls(
            runs=len(reports),
            attempted=sum(each.attempted for each in reports),
            acknowledged=sum(each.acknowledged for each in reports),
            handed_over=sum(each.handed_over for each in reports),
            failed_messages=sum(each.failed for each in reports),
            missed=sum(each.missed for each in reports),
            lost=sum(each.lost for each in reports),
            problems=[problem for each in reports for problem in each.problems()],
            results=given.report or given.results,
            plot=given.plot,
            topic=given.topic,
            seconds=round(seconds, 3),
        )


def load(
    spark: SparkSession,
    *,
    topic: str,
    results: str,
    options: Mapping[str, str],
    rate: float | None = 1000.0,
    size: int = 1024,
    modes: Sequence[str] = ("sync",),
    seconds: float = 10.0,
    tasks: int | None = None,
    callers: int = 64,
    batch: int = 32,
    progress: Progress = no_progress,
) -> RunReport:
    """Sends to ``topic``, adds the counts to ``results`` (a directory that all executors can write to) and returns the result.

    ``options``: of format rocketmq: ``nameserver``, users, ``sendTimeoutMs``, ... ``rate``: messages per second of all tasks
    together, above 0 and at most 10^9, None for no limit; ``size``: bytes of a body, 1 to 4 MiB; ``modes``: some of "sync",
    "async", "oneway" and "batch", which run one after another; ``seconds``: time in which each mode begins sends, above 0 and
    at most 86,400; ``tasks``: number of tasks, at least 1, by default, and on a local master at most, as many as Spark runs at
    a time; ``callers``: coroutines of each task that await a send, in mode "sync", 1 to 65,536; ``batch``: messages of a
    request in mode "batch", 1 to 4096, together at most 4 MiB with 256 bytes for each beside its body. ``progress``: called
    with the growth of the topic at intervals.

    A send that raises RocketMQError is counted as failed. Raises ConfigError for an invalid argument or option, and if
    ``results`` has Parquet files of something else; TopicNotFoundError if the topic does not exist; the errors of the requests
    for its route, and for its offsets before each mode; and the errors of Spark. Without the permission to read the offsets,
    without a master of a broker, or if they cannot be read after a mode, the number of stored messages is None.
    """
    sending = _write_options(options, topic)
    _check(tuple(modes), rate, size, seconds, callers, batch)
    at_once = _tasks(spark, tasks)
    plan = LoadPlan(secrets.token_hex(6), sending, topic, modes[0], rate, size, seconds, at_once, callers, batch)
    target_queues(sending.access, [topic])
    stored = []
    for mode in modes:
        began, arrivals = time(), Arrivals(sending.access, [topic])
        with watched(arrivals, _Pace(mode, progress).report):
            _send(spark, replace(plan, mode=mode), results)
        if (grown := _grown(arrivals)) is not None:
            stored.append(Result(plan.run, -1, mode, WHOLE, STORED, grown, 0, {}, 0.0, began, time()))
    if stored:
        spark.createDataFrame(stored, COLUMNS).coalesce(1).write.mode("append").parquet(results)
    (made,) = report(read_results(spark, results).where(f"run = '{plan.run}'"))
    return made


def _send(spark: SparkSession, plan: LoadPlan, results: str) -> None:
    tasks = spark.range(0, plan.tasks, 1, plan.tasks)
    tasks.mapInArrow(partial(_task, plan), COLUMNS, barrier=True).write.mode("append").parquet(results)


def _task(plan: LoadPlan, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = BarrierTaskContext.get()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            results = results_of(plan, number, fresh=context.attemptNumber() > 0, ready=partial(_together, context))
            columns = [pa.array(values, kind) for values, kind in zip(zip(*results, strict=True), _TYPES, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=list(Result._fields))


def _together(context: BarrierTaskContext) -> None:
    """Waits for all tasks and then until a common moment, so that they begin together."""
    begin = max(map(float, context.allGather(repr(time())))) + ALL_HERE
    sleep(max(begin - time(), 0.0))


# -- what is asked for


def _write_options(options: Mapping[str, str], topic: str) -> WriteOptions:
    for name in options:
        if name.lower() in {other.lower() for other in OTHERS}:
            raise ConfigError(f"option {name} has no meaning for a load; leave it out: rate, size and batch are arguments")
    return write_options({"producerGroup": DEFAULT_GROUP, **options, "topic": topic}, streaming=False)


def _check(modes: Sequence[str], rate: float | None, size: int, seconds: float, callers: int, batch: int) -> None:
    if not modes:
        raise ConfigError(f"a load needs at least one mode; give some of {', '.join(MODES)}")
    for mode in modes:
        if mode not in MODES:
            raise ConfigError(f"there is no mode {mode!r}, only {', '.join(MODES)}")
    if len(set(modes)) < len(modes):
        raise ConfigError(f"modes {', '.join(modes)}: one is named more than once; name each once")
    if rate is not None and not 0 < rate <= 1e9:
        raise ConfigError(f"rate must be above 0 and at most 1e9 messages a second, not {rate:g}")
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"seconds must be above 0 and at most 86400, not {seconds:g}")
    for name, value, high in (("size", size, MAX_BATCH), ("callers", callers, 65_536), ("batch", batch, 4096)):
        if not 1 <= value <= high:
            raise ConfigError(f"{name} must be from 1 to {high}, not {value}")
    if "batch" in modes and batch * (size + 256) > MAX_BATCH:
        raise ConfigError(
            f"a batch of {batch} messages of {size} bytes, with 256 more for each, takes {batch * (size + 256)} bytes; the limit "
            f"of a broker is {MAX_BATCH}; lower batch or size"
        )


def _tasks(spark: SparkSession, wanted: int | None) -> int:
    """Returns the number of tasks. Raises ConfigError for less than 1 and, on a local master, for more than run at a time."""
    at_once = parallelism(spark)
    if wanted is None:
        return at_once
    master = master_of(spark)
    local = master.startswith("local")
    if wanted < 1 or (wanted > at_once and local):
        limits = f"from 1 to {at_once}, what --master {master} runs at a time" if local else "1 or more"
        raise ConfigError(f"tasks must be {limits}, not {wanted}")
    return wanted


# -- the topic, from the driver


def _grown(arrivals: Arrivals) -> int | None:
    """Reads the growth of the topic until two reads agree or ``PATIENCE`` seconds are over, and returns it; None if it cannot be
    read."""
    until = monotonic() + PATIENCE
    try:
        grown = arrivals.count()
        while grown is not None and monotonic() < until:
            sleep(SETTLED)
            before, grown = grown, arrivals.count()
            if grown == before:
                break
    except RocketMQError as error:
        logger.warning("the number of stored messages is not known, so no loss can be found: %s", printable(error))
        return None
    return grown


class _Pace:
    """Reports the growth of the topic to ``progress``."""

    def __init__(self, mode: str, progress: Progress) -> None:
        self._mode = mode
        self._progress = progress
        self._last, self._since = 0, monotonic()

    def report(self, grown: int) -> None:
        now = monotonic()
        self._progress({"mode": self._mode, "stored": grown, "rate": round((grown - self._last) / (now - self._since))})
        self._last, self._since = grown, now


def _create(options: Mapping[str, str], topic: str, queues: int) -> None:
    """Creates the topic if it does not exist."""

    async def create(admin: Admin) -> None:
        if topic not in await admin.topics():
            await admin.create_topic(topic, queues=queues)

    ask(options, create)


# -- the command


class _Load:
    DESCRIPTION = """\
Sends messages from Spark's executors at a rate, counts what comes of each, compares that with the topic's
offsets, and prints throughput and latencies. A latency is counted from the time that a message was due, so
that waiting for a slow broker is part of it.

Exit code 1 if a message failed, an acknowledged one is not in the topic, or the tasks did not run at the same
time."""

    EXAMPLES = """
        rmq spark load --topic Load --create 8 --rate 2000 --modes sync,batch --results results
        rmq spark load --report results --plot load.png
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--topic", metavar="NAME", help="where to send to")
        where.add_argument("--report", metavar="PATH", help="send nothing: report these result files, all their runs")
        parser.add_argument(
            "--results", metavar="PATH", help="directory that result files (Parquet) are added to; needed with --topic"
        )
        parser.add_argument("--create", type=whole_number(1, 1024), metavar="QUEUES", help="make the topic if there is none")
        parser.add_argument(
            "--rate",
            type=float,
            default=1000.0,
            metavar="N",
            help="messages a second, all tasks together; 0: as fast as it can; default: 1000",
        )
        parser.add_argument(
            "--size", type=whole_number(1, MAX_BATCH), default=1024, metavar="BYTES", help="of a body; default: 1024"
        )
        parser.add_argument(
            "--modes", default="sync", metavar="A,B", help=f"one after another, of {', '.join(MODES)}; default: sync"
        )
        parser.add_argument("--seconds", type=float, default=10.0, metavar="N", help="of each mode; default: 10")
        parser.add_argument(
            "--tasks", type=whole_number(1, 100_000), metavar="N", help="senders; default: what Spark runs side by side"
        )
        parser.add_argument(
            "--callers",
            type=whole_number(1, 65_536),
            default=64,
            metavar="N",
            help="coroutines of mode sync in a task; default: 64",
        )
        parser.add_argument(
            "--batch",
            type=whole_number(1, 4096),
            default=32,
            metavar="N",
            help="messages of a request in mode batch; default: 32",
        )
        parser.add_argument("--plot", metavar="FILE", help="picture of the run, PNG or SVG, on this machine (extra bench)")

    def check(self, given: argparse.Namespace) -> None:
        """Checks the arguments that need no Spark and, unless it is to be created, that the topic exists."""
        if given.plot is not None:
            needs_matplotlib()
        if given.report:
            return
        if given.results is None:
            raise ConfigError("--topic needs --results; give the directory for the result files")
        options = connection_options(given)
        access_for(options | {"topic": given.topic})
        if given.create is None:
            check_topics(options, [given.topic])

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> LoadSummary:
        if given.plot is not None:
            needs_matplotlib()
        began = monotonic()
        reports = report(read_results(spark, given.report)) if given.report else [self._load(spark, given, progress)]
        for each in reports:
            for mode in each.modes:
                progress({"run": each.run, **mode.as_fields()} if given.report else mode.as_fields())
        if given.plot is not None and reports:
            plot(reports[-1], given.plot)
        return LoadSummary.of(reports, given, monotonic() - began)

    def _load(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> RunReport:
        if given.results is None:
            raise ConfigError("--topic needs --results; give the directory for the result files")
        options = connection_options(given)
        if given.create is not None:
            _create(options, given.topic, given.create)
        return load(
            spark,
            topic=given.topic,
            results=given.results,
            options=options,
            rate=given.rate or None,
            size=given.size,
            modes=[mode.strip() for mode in given.modes.split(",")],
            seconds=given.seconds,
            tasks=given.tasks,
            callers=given.callers,
            batch=given.batch,
            progress=progress,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_job("load", _Load(), arguments)


if __name__ == "__main__":
    sys.exit(main())
