"""The demo on Spark, ``rmq demo --spark``: writes a table to a topic, reads it back, archives and replays it, and checks that
nothing is missing.

Spark's workers are processes and its calls block, so the broker runs on a loop in another thread. Each step uses the public
interface: format("rocketmq") and the pipelines. This module can be imported only where pyspark is installed.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import click
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from rich.progress import Progress, TaskID

from rmq_async import Admin
from rmq_async.spark import pipelines
from rmq_async.testing import ThreadedRocketMQ, find_java

from ..output import Output

__all__ = ["run_spark_demo"]

QUEUES: Final = 4
"""Queues of each topic on each of the two brokers."""
NOISY: Final = ("py4j", "SQLQueryContextLogger", "DataFrameQueryContextLogger")


def run_spark_demo(messages: int, size: int, output: Output) -> int:
    """Runs the demo and returns the exit code. ``messages``: rows of the table; ``size``: bytes of a body."""
    began = perf_counter()
    try:
        with ExitStack() as stack:
            server = stack.enter_context(ThreadedRocketMQ(brokers=2))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rmq-demo-", ignore_cleanup_errors=True)))
            demo = _Demo(messages, size, server, place, output)
            with output.progress() as bars:
                demo.bars = bars
                with demo.step("start Spark") as done:
                    spark = stack.enter_context(pipelines.session.running_or(lambda: _session(place)))
                    done["what"] = f"{spark.version}, {spark.sparkContext.master}"
                demo.run(spark)
            return demo.verdict(perf_counter() - began)
    except (PySparkException, Py4JError) as error:
        raise click.ClickException(pipelines.job.explained(error)[0]) from None


class _Demo:
    """One run. ``problems``: the reasons why it failed, a sentence each."""

    def __init__(self, messages: int, size: int, server: ThreadedRocketMQ, place: Path, output: Output) -> None:
        self.bars = Progress(disable=True)
        self.problems: list[str] = []
        self._messages = messages
        self._size = size
        self._server = server
        self._archive = str(place / "archive")
        self._output = output
        self._options = {"nameserver": server.namesrv}
        self._topic = f"rmq_demo_{secrets.token_hex(4)}"
        self._copy = f"{self._topic}_copy"
        self._bar: TaskID | None = None
        output.line(f"embedded broker {server.namesrv}, {messages} messages, bodies of {size} bytes")

    def run(self, spark: SparkSession) -> None:
        self._server.run(self._create())
        table = self._table(spark)
        with self.step("publish") as done:
            sent = pipelines.publish.publish(
                table, self._topic, body="body", keys=["key"], id="key", properties=["customer"], options=self._options,
                progress=self._progress,
            )  # fmt: skip
            self._check("published", sent.messages)
            self._check("in the topic after publishing", sent.arrived)
            done |= {"messages": sent.messages, "what": f"a DataFrame to topic {self._topic}"}
        with self.step("read back") as done:
            done |= {"messages": self._read(spark), "what": "format rocketmq: each body and property as it was sent"}
        with self.step("archive") as done:
            kept = pipelines.archive.archive(spark, self._topic, self._archive, options=self._options, progress=self._progress)
            self._check("archived", kept.messages)
            done |= {"messages": kept.messages, "what": f"Parquet by topic and date, {_files(self._archive)} files"}
        with self.step("replay") as done:
            again = pipelines.replay.replay(
                spark, self._archive, topic=self._copy, options=self._options, progress=self._progress
            )
            self._check("replayed", again.messages)
            self._check("in the copy after replaying", again.arrived)
            done |= {"messages": again.messages, "what": f"the archive to topic {self._copy}"}
        for topic, by, what in ((self._topic, "spark-id", "the topic"), (self._copy, "key", "the copy")):
            with self.step("reconcile") as done:
                found = self._reconcile(spark, table, topic, by, what)
                done |= {"messages": found.matched, "what": f"the table against {what}: {found.missing} missing"}
                done |= {kind: getattr(found, kind) for kind in pipelines.reconcile.KINDS}

    async def _create(self) -> None:
        async with Admin(namesrv=self._server.namesrv) as admin:
            for topic in (self._topic, self._copy):
                await admin.create_topic(topic, queues=QUEUES)

    def _table(self, spark: SparkSession) -> DataFrame:
        key = sql.concat(sql.lit("order-"), sql.col("id"))
        customer = sql.concat(sql.lit("customer-"), sql.col("id") % 100)
        return spark.range(self._messages).select(key.alias("key"), self._body(key).alias("body"), customer.alias("customer"))

    def _body(self, key: Column) -> Column:
        """Returns the body of a key: its digest, repeated."""
        return sql.substring(sql.repeat(sql.sha2(key.cast("binary"), 256), -(-self._size // 64)), 1, self._size)

    def _read(self, spark: SparkSession) -> int:
        read = spark.read.format("rocketmq").options(**self._options, topic=self._topic).load()
        customer = sql.concat(sql.lit("customer-"), sql.substring("keys", 7, 20).cast("bigint") % 100)
        sound = (sql.col("body") == self._body(sql.col("keys")).cast("binary")) & (sql.col("properties.customer") == customer)
        row = read.agg(
            sql.count(sql.lit(1)).alias("rows"), sql.count_distinct("keys").alias("keys"), sql.count_if(sound).alias("sound")
        ).first()
        assert row is not None
        self._check("read back", row["rows"])
        self._check("different ones read back", row["keys"])
        self._check("read back undamaged", row["sound"])
        return int(row["rows"])

    def _reconcile(
        self, spark: SparkSession, table: DataFrame, topic: str, by: str, what: str
    ) -> pipelines.reconcile.Reconciled:
        columns = pipelines.reconcile.SentTable(id="key", key="key", state=None)
        made = pipelines.reconcile.reconcile(
            spark, table, topic, self._options, by=by, table=columns, fail_on=pipelines.reconcile.KINDS, progress=self._progress
        )
        made.findings.unpersist()
        found = made.summary
        self._check(f"found by their {'RMQ_SPARK_ID' if by == 'spark-id' else by} in {what}", found.matched)
        if found.failed:
            kinds = ", ".join(f"{getattr(found, kind)} {kind}" for kind in pipelines.reconcile.KINDS)
            self.problems.append(f"{what} is not what was sent: {kinds}")
        return found

    # -- output

    @contextmanager
    def step(self, name: str) -> Iterator[dict[str, Any]]:
        """Reports a step: the values that the body puts into the dict, and its duration."""
        began = perf_counter()
        bar = self._bar = self.bars.add_task(name, total=self._messages)
        done: dict[str, Any] = {}
        yield done
        seconds = perf_counter() - began
        self.bars.update(bar, completed=self._messages)
        self._output.record({"type": "step", "step": name, **done, "seconds": round(seconds, 3)})
        count = f"{done['messages']:,} messages" if "messages" in done else ""
        self._output.line(f"{name:<12}{count:>18}  {seconds:5.1f} s  {done['what']}")

    def _progress(self, figures: Mapping[str, Any]) -> None:
        number = figures.get("arrived", figures.get("messages"))
        if isinstance(number, int) and self._bar is not None:
            self.bars.update(self._bar, completed=min(number, self._messages))

    def _check(self, what: str, number: int | None) -> None:
        if number != self._messages:
            self.problems.append(f"{number} of {self._messages} messages were {what}")

    def verdict(self, seconds: float) -> int:
        """Prints the summary and the problems; returns the exit code."""
        place = {"namesrv": self._server.namesrv, "topic": self._topic, "copy": self._copy}
        self._output.record(
            {"type": "summary", "ok": not self.problems, "messages": self._messages, **place, "seconds": round(seconds, 3),
             "problems": self.problems}
        )  # fmt: skip
        if self.problems:
            self._output.trouble(f"demo: {'; '.join(self.problems)}")
            return 1
        self._output.line()
        self._output.line(
            f"{self._messages} messages published, read back, archived, replayed and reconciled in {seconds:.1f} s: "
            "nothing lost, nothing duplicated."
        )
        return 0


def _files(path: str) -> int:
    return sum(1 for _ in Path(path).rglob("*.parquet"))


def _session(place: Path) -> SparkSession:
    """Starts a session on this machine's cores. Raises ClickException where Spark does not start."""
    if find_java() is None:
        raise click.ClickException(
            "Spark needs Java 17 or later: neither JAVA_HOME nor PATH has a java; install it or set JAVA_HOME"
        )
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("rmq demo").master("local[*]")
    for setting, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # Java never gets warm here
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
    }.items():
        builder = builder.config(setting, value)
    said = None
    try:
        with pipelines.silence.stderr_kept() as said:
            spark = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        why = None if said is None else _first_trouble(said.text())
        raise click.ClickException(f"Spark does not start: {why or error}; look at JAVA_HOME and SPARK_HOME") from None
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _first_trouble(said: str) -> str | None:
    """Returns the first line that is neither blank, nor a warning, nor by the script spark-class; None without one."""
    return next(
        (
            line
            for line in said.splitlines()
            if line.strip() and not line.startswith("WARNING") and "/spark-class: " not in line
        ),
        None,
    )
