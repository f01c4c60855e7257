"""The driver of the soak: ``python spark_soak_driver.py DIRECTORY``, of which ``soak.json`` says the cluster and the topics.

Two streaming queries, topic to Parquet and topic to topic, run until the file ``drain`` is there; then they take what is left,
and the driver ends. A query that ends before is started again from its checkpoint, and that is written down. Tasks that are a
little slow get a second attempt, and tasks may fail any number of times. Spark's event log, in ``events``, says how each attempt
ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of the benchmarks
from support.spark_soak_count import Soak

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.task.duration.threshold": "2s",  # of the last task of a stage
    "spark.speculation.efficiency.enabled": "false",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.scheduler.mode": "FAIR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "768m",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SINK = {"batchBytes": "4096", "maxMessagesPerSecond": "1500"}
"""Lets a task take about a second and send many batches, so that faults and second attempts find it between two of them."""
PATIENCE = 1500.0
"""Seconds in which the rest is taken."""


class Query(NamedTuple):
    name: str
    start: Callable[[], Any]


def session(soak: Soak) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    soak.events.mkdir(exist_ok=True)
    builder = SparkSession.builder.master(soak.master).appName("soak")
    own = {
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.driver.extraJavaOptions": f"{JAVA} -Dderby.system.home={soak.place}",
        "spark.executor.extraJavaOptions": JAVA,
        "spark.eventLog.dir": soak.events.as_uri(),
        "spark.sql.warehouse.dir": str(soak.place / "warehouse"),
        "spark.local.dir": str(soak.place / "local"),
    }
    for name, value in (SETTINGS | own).items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def queries(spark: SparkSession, soak: Soak) -> list[Query]:
    def frame(topic: str, columns: str) -> Any:
        reader = spark.readStream.format("rocketmq").option("nameserver", soak.namesrv).option("topic", topic)
        reader = reader.option("startingOffsets", "earliest").option("columns", columns).option("maxOffsetsPerTrigger", "8000")
        return reader.load()

    def to_parquet() -> Any:
        writer = frame(soak.sources[0], "body,brokerName,queueId,offset").writeStream.format("parquet")
        return writer.option("path", str(soak.out))

    def to_topic() -> Any:
        writer = frame(soak.sources[1], "body").writeStream.format("rocketmq")
        return writer.option("nameserver", soak.namesrv).option("topic", soak.target).options(**SINK)

    def started(name: str, writer: Callable[[], Any]) -> Query:
        def start() -> Any:
            made = writer().queryName(name).option("checkpointLocation", str(soak.place / f"checkpoint-{name}"))
            return made.trigger(processingTime="1 second").start()

        return Query(name, start)

    return [started("parquet", to_parquet), started("topic", to_topic)]


def note(soak: Soak, event: str, **what: Any) -> None:
    with (soak.place / "driver.jsonl").open("a") as file:
        file.write(json.dumps({"event": event, "at": round(time.time(), 3), **what}) + "\n")


def run(soak: Soak, wanted: list[Query]) -> None:
    running = {query.name: query.start() for query in wanted}
    ready: set[str] = set()
    while not (soak.place / "drain").exists():
        time.sleep(0.5)
        for query in wanted:
            progress = running[query.name].lastProgress
            if progress is not None and progress["numInputRows"] and query.name not in ready:
                ready.add(query.name)
                note(soak, "ready", query=query.name)
            keep_up(soak, query, running)
    deadline = time.monotonic() + PATIENCE
    for query in wanted:
        drain(soak, query, running, deadline)


def keep_up(soak: Soak, query: Query, running: dict[str, Any]) -> None:
    """Starts it again where it has ended."""
    if running[query.name].isActive:
        return
    note(soak, "ended", query=query.name, error=str(running[query.name].exception()))
    running[query.name] = query.start()


def drain(soak: Soak, query: Query, running: dict[str, Any], deadline: float) -> None:
    """Stops it when it has taken all. Raises RuntimeError when it does not come to that by ``deadline``."""
    from pyspark.errors import StreamingQueryException

    while True:
        try:
            running[query.name].processAllAvailable()
            break
        except StreamingQueryException:
            if time.monotonic() > deadline:
                raise RuntimeError(f"query {query.name} did not take what was left in {PATIENCE:g} s") from None
            keep_up(soak, query, running)
    note(soak, "drained", query=query.name)
    running[query.name].stop()


def main(directory: str) -> None:
    soak = Soak.load(Path(directory))
    spark = session(soak)
    run(soak, queries(spark, soak))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
