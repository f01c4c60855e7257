"""What Spark adds to reading and writing topics: ``python benchmarks/spark.py``.

Everything runs against one broker, in turns, round after round: a data source that makes rows of the same form out of nothing
(what Spark itself allows on this machine), a plain process that reads the topic with ``PullConsumer.read``, the batch read of all
columns and of three, a batch write, and a plain process that sends as many messages with ``send_batch``. What counts are the ratios
within a round and their medians; absolute figures belong to the machine they were taken on. Then the topic is read as a stream into
Parquet files.
Every read and every write is counted: what is lost or there twice makes the exit code 1, as does a figure beyond its limit.

By default the official name server and broker are started (profile *stock*, in a directory that is deleted afterwards). It takes a
JVM of Spark, one of the broker and some kilobytes of disk for each message and round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.clusters import BenchmarkError, Target, stored_messages, target
from support.spark_report import beyond_limits, ratios, table
from support.spark_yardsticks import QUEUES, in_process, register_generator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NARROW: Final = "queueId,offset,body"
MICRO_BATCHES: Final = 10
TUNED: Final = {
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferBytesOnMessageInMemory": str(1024 * 1024),
    "maxTransferCountOnMessageInDisk": "1024",
    "maxTransferBytesOnMessageInDisk": str(1024 * 1024),
}
"""What a broker gives for one pull."""


def option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=300_000, help="in the topic that is read, and of each write")
    parser.add_argument("--body", type=int, default=1024, help="bytes of each message's body, 16 at least (default: 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything takes its turn (default: 3)")
    parser.add_argument("--parts", default="read,write,stream", help="of read, write, stream (default: all)")
    parser.add_argument("--pull-size", type=int, help="the option pullBatchSize; a stock broker gives 32 at most")
    parser.add_argument(
        "--tuned", action="store_true", help="a broker that gives 1024 messages or 1 MiB a pull, --pull-size 1024"
    )
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a median is beyond the project's limits")
    return parser


# -- Spark


@contextmanager
def session(place: Path) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("benchmark")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.noDataProgressEventInterval", "1")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


class Run:
    """One session on one broker. ``figures``: by name, one for each round. ``problems``: what must not be."""

    def __init__(self, spark: SparkSession, namesrv: str, place: Path, options: argparse.Namespace) -> None:
        self.spark = spark
        self.namesrv = namesrv
        self.place = place
        self.options = options
        self.figures: dict[str, list[float]] = {}
        self.facts: dict[str, Any] = {}
        self.problems: list[str] = []
        self._topics = 0

    def topic(self) -> str:
        from rmq_async import Admin

        self._topics += 1
        name = f"Spark-{os.getpid()}-{self._topics}"

        async def make() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.create_topic(name, queues=QUEUES)

        asyncio.run(make())
        return name

    def frame(self, topic: str, columns: str | None = None, *, stream: bool = False, **more: object) -> DataFrame:
        reader = (self.spark.readStream if stream else self.spark.read).format("rocketmq")
        given = {
            "nameserver": self.namesrv,
            "topic": topic,
            "columns": columns,
            "pullBatchSize": self.options.pull_size,
            **more,
        }
        for name, value in given.items():
            if value is not None:
                reader = reader.option(name, str(value))
        return reader.load()

    def note(self, name: str, rate: float) -> None:
        self.figures.setdefault(name, []).append(rate)
        print(f"{name}: {rate:,.0f}/s", file=sys.stderr, flush=True)

    def timed(self, name: str, work: Callable[[], object], count: int) -> None:
        begun = time.perf_counter()
        work()
        self.note(name, count / (time.perf_counter() - begun))

    # -- what is measured

    def warm(self, topic: str) -> None:
        """Python workers and the compilers of both JVMs; nothing of it counts."""
        noop(self.generated(None))
        self.plain("read", topic)
        for _ in range(3):
            noop(self.frame(topic))
        noop(self.frame(topic, NARROW))
        self.write(self.topic(), min(self.options.messages, 20_000))

    def plain(self, what: str, topic: str) -> float:
        return in_process(what, self.namesrv, topic, self.options.messages, self.options.body)

    def generated(self, columns: str | None) -> DataFrame:
        reader = self.spark.read.format("generator").option("rows", self.options.messages).option("body", self.options.body)
        return (reader if columns is None else reader.option("columns", columns)).load()

    def read_round(self, topic: str, number: int) -> None:
        count = self.options.messages
        turns = [
            lambda: self.timed("generator", lambda: noop(self.generated(None)), count // QUEUES * QUEUES),
            lambda: self.note("plain pull", self.plain("read", topic)),
            lambda: self.timed("read", lambda: noop(self.frame(topic)), count),
            lambda: self.timed("narrowed read", lambda: noop(self.frame(topic, NARROW)), count),
            lambda: self.timed("narrowed generator", lambda: noop(self.generated(NARROW)), count // QUEUES * QUEUES),
        ]
        for turn in turns if number % 2 else turns[::-1]:
            turn()

    def write_round(self, number: int) -> None:
        def by_spark() -> None:
            topic = self.topic()
            self.timed("write", lambda: self.write(topic, self.options.messages), self.options.messages)
            self.check_numbers("write", self.frame(topic, "body"))

        def plainly() -> None:
            self.note("plain send", self.plain("send", self.topic()))

        for turn in (by_spark, plainly) if number % 2 else (plainly, by_spark):
            turn()

    def write(self, topic: str, count: int) -> None:
        rest = self.options.body - 16
        frame = self.spark.range(0, count, 1, 2).selectExpr(
            f"cast(concat(lpad(id, 16, '0'), repeat('x', {rest})) as binary) body"
        )
        options = {"nameserver": self.namesrv, "topic": topic}
        frame.write.format("rocketmq").mode("append").options(**options).save()

    def stream(self, topic: str) -> None:
        """The backlog in ten micro-batches into Parquet files, then triggers that find nothing."""
        target_place, checkpoint = self.place / "parquet", self.place / "checkpoint"
        count = self.options.messages
        frame = self.frame(topic, stream=True, startingOffsets="earliest", maxOffsetsPerTrigger=-(-count // MICRO_BATCHES))
        writer = (
            frame.writeStream.format("parquet").option("path", str(target_place)).option("checkpointLocation", str(checkpoint))
        )
        begun = time.perf_counter()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.note("stream into Parquet", count / (time.perf_counter() - begun))
        batches = [each for each in query.recentProgress if each.numInputRows]
        self.facts["micro-batches"] = len(batches)
        if len(batches) != MICRO_BATCHES:
            self.problems.append(f"stream: {len(batches)} micro-batches instead of {MICRO_BATCHES}")
        self.check_offsets("stream", self.spark.read.parquet(str(target_place)), topic)
        query = writer.trigger(processingTime="100 milliseconds").start()
        time.sleep(6)
        idle = [each.durationMs["triggerExecution"] for each in query.recentProgress if not each.numInputRows]
        query.stop()
        self.facts["empty triggers"] = len(idle)
        self.facts["empty trigger, ms"] = median(idle[1:]) if len(idle) > 1 else None

    # -- what is counted

    def check_offsets(self, name: str, frame: DataFrame, topic: str) -> None:
        """Every offset of every queue, once: by count, distinct count, bounds and a checksum."""
        bounds = asyncio.run(ends_of(self.namesrv, topic))
        sums = (
            "count(*) n",
            "count(distinct offset) d",
            "min(offset) low",
            "max(offset) high",
            "bit_xor(xxhash64(queueId, offset)) x",
        )
        from pyspark.sql.functions import expr

        found = {row.queueId: row for row in frame.groupBy("queueId").agg(*map(expr, sums)).collect()}
        for queue_id, (start, end) in bounds.items():
            row = found.get(queue_id)
            figures = (0, 0, 0, 0) if row is None else (row.n, row.d, row.low, row.high)
            if figures != (end - start, end - start, start, end - 1):
                self.problems.append(
                    f"{name}: queue {queue_id} holds [{start}, {end}), rows, distinct, first and last are {figures}"
                )
            elif row is not None:
                wanted = self.spark.range(start, end).selectExpr(f"bit_xor(xxhash64({queue_id}, id)) x").first()
                if wanted is None or wanted.x != row.x:
                    self.problems.append(f"{name}: queue {queue_id}: the checksum of its offsets is another")
        total = sum(end - start for start, end in bounds.values())
        if total != self.options.messages:
            self.problems.append(f"{name}: the topic holds {total} messages instead of {self.options.messages}")

    def check_numbers(self, name: str, frame: DataFrame) -> None:
        """Every number that was written, once."""
        row = frame.selectExpr("cast(decode(substring(body, 1, 16), 'UTF-8') as bigint) n").selectExpr(
            "count(*) n", "count(distinct n) d", "min(n) low", "max(n) high"
        ).first()  # fmt: skip
        count = self.options.messages
        figures = None if row is None else (row.n, row.d, row.low, row.high)
        if figures != (count, count, 0, count - 1):
            self.problems.append(f"{name}: rows, distinct, first and last are {figures}, {count} were written")


async def ends_of(namesrv: str, topic: str) -> dict[int, tuple[int, int]]:
    from rmq_async import PullConsumer

    async with PullConsumer("counts", namesrv=namesrv) as consumer:
        queues = await consumer.queues(topic)
        return {queue.queue_id: (await consumer.min_offset(queue), await consumer.max_offset(queue)) for queue in queues}


def noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


class WorkerMemory:
    """Resident memory of Spark's Python workers, looked at ten times a second: the most, and how much any one of them grew."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}
        self.most: dict[int, int] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()

    def forget(self) -> None:
        """Growth counts from here on."""
        self.first = {}
        self.most = {}

    def _watch(self) -> None:
        us = psutil.Process()
        while not self._end.wait(0.1):
            for process in us.children(recursive=True):
                try:
                    if "pyspark" not in " ".join(process.cmdline()):
                        continue
                    if "python" not in process.name():
                        continue
                    size = process.memory_info().rss
                except psutil.Error:
                    continue
                self.first.setdefault(process.pid, size)
                self.most[process.pid] = max(self.most.get(process.pid, 0), size)

    @property
    def facts(self) -> dict[str, float]:
        growth = [self.most[pid] - first for pid, first in self.first.items() if pid in self.most]
        return {
            "worker growth, MiB": round(max(growth, default=0) / 2**20, 1),
            "worker memory, MiB": round(max(self.most.values(), default=0) / 2**20, 1),
        }


@contextmanager
def broker(options: argparse.Namespace) -> Iterator[Target]:
    """The cluster to measure on."""
    if not options.tuned:
        with target(options) as place:
            yield place
        return
    from rmq_async.testing.cluster import ClusterError, RealCluster

    cluster = RealCluster(profile="stock", small=False, broker_conf=TUNED)
    try:
        asyncio.run(cluster.start())
    except ClusterError as error:
        raise BenchmarkError(f"no cluster: {error}") from error
    try:
        yield Target(cluster.namesrv)
    finally:
        asyncio.run(cluster.stop())


def measure(options: argparse.Namespace, namesrv: str, place: Path) -> dict[str, Any]:
    with session(place) as spark:
        run = Run(spark, namesrv, place, options)
        register_generator(spark)
        topic = run.topic()
        in_process("send", namesrv, topic, options.messages, options.body)
        if asyncio.run(stored_messages(namesrv, topic, options.messages)) != options.messages:
            raise BenchmarkError("the topic to read is not complete")
        memory = WorkerMemory()
        try:
            run.warm(topic)
            memory.forget()
            for number in range(options.rounds):
                if "read" in options.parts:
                    run.read_round(topic, number)
                if "write" in options.parts:
                    run.write_round(number)
            run.check_offsets("read", run.frame(topic), topic)
            if "stream" in options.parts:
                run.stream(topic)
        finally:
            memory.close()
        run.facts |= memory.facts
    settings = {name: getattr(options, name) for name in ("messages", "body", "rounds", "parts", "pull_size", "tuned")}
    return {
        "settings": settings | {"queues": QUEUES, "cores": os.cpu_count()},
        "rates": run.figures,
        "ratios": ratios(run.figures),
        "facts": run.facts,
        "problems": run.problems,
    }


def main(given: list[str] | None = None) -> int:
    parser = option_parser()
    options = parser.parse_args(given)
    options.parts = [part.strip() for part in options.parts.split(",") if part.strip()]
    options.broker_pid = None
    if options.tuned:
        options.pull_size = options.pull_size or 1024
        if options.namesrv:
            parser.error("--tuned is of a broker of our own, --namesrv names another")
    if options.messages < QUEUES or options.body < 16 or options.rounds < 1:
        parser.error(f"--messages must be {QUEUES} at least, --body 16, --rounds 1")
    if unknown := set(options.parts) - {"read", "write", "stream"}:
        parser.error(f"--parts: {', '.join(sorted(unknown))}; there are read, write, stream")
    place = Path(tempfile.mkdtemp(prefix="rmq-spark-"))
    try:
        with broker(options) as cluster:
            result = measure(options, cluster.namesrv, place)
    except (BenchmarkError, OSError) as error:
        print(f"spark.py: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(json.dumps(result, indent=1) if options.json == "-" else table(result))
    if options.json and options.json != "-":
        Path(options.json).write_text(json.dumps(result, indent=1))
    problems = result["problems"] + (beyond_limits(result) if options.check else [])
    for problem in problems:
        print(f"spark.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
