"""The streaming query of a run, started in a given session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from . import history, hooks
from .history import PATIENCE, Run, ticks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Once for each session. The hooks travel by value, as workers cannot import them."""
    for module in (history, hooks):
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(hooks.FaultyDataSource)


def start(spark: SparkSession, run: Run, *, faults: bool = True, available_now: bool = True) -> Any:
    """The started query, which begins or goes on where its checkpoint is."""
    settings = (run if faults else replace(run, faults=())).to_json()
    run.note("start", state=run.state())
    reader = spark.readStream.format("rocketmq_faults").option("nameserver", run.namesrv).option("faults", settings)
    reader = reader.option("topic", run.topic).option("columns", "body,brokerName,queueId,offset")
    for name, value in run.options.items():
        reader = reader.option(name, value)
    frame = reader.load()
    if run.target is None:
        writer = frame.writeStream.format("parquet").option("path", str(run.out))
    else:
        writer = frame.select("body").writeStream.format("rocketmq_faults").option("faults", settings)
        writer = writer.option("nameserver", run.namesrv).option("topic", run.target)
    writer = writer.option("checkpointLocation", str(run.checkpoint))
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime="50 milliseconds")).start()


def finish(run: Run, query: Any, limit: float = PATIENCE) -> None:
    """Waits for the end of an AvailableNow query; a failure is written down."""
    for _ in ticks(f"{run.case}: the query did not end", limit):
        if not query.isActive:
            break
    if error := query.exception():
        run.fail(str(error))
