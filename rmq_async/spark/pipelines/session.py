"""Provides the Spark session a pipeline runs in: the existing one of any thread, or a new one; classic, or of Spark Connect.

Spark looks for data sources of Python only in the session that is active in the calling thread, and each Python thread begins
without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkAttributeError, PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.functions import spark_partition_id

__all__ = ["activate", "master_of", "parallelism", "running_or"]

_MANY: Final = 1 << 16
"""Rows of a range, more than a cluster has cores: Spark makes as many partitions of it as tasks run at a time."""


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the active session of this thread, by creating a frame."""
    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing int")


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at a time, as ``spark.default.parallelism`` says.

    With Spark Connect it counts the partitions of a frame, which takes a job.
    """
    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkAttributeError:
        return spark.range(_MANY).select(spark_partition_id()).distinct().count()


def master_of(spark: SparkSession) -> str:
    """Return the master URL of the session's context; of Spark Connect the setting, which a session may have changed."""
    try:
        return str(spark.sparkContext.master)
    except PySparkAttributeError:
        return spark.conf.get("spark.master", "") or ""


@contextmanager
def running_or(begin: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Yield the session of this process, else one that ``begin`` makes and that ends here; active in this thread."""
    there = _running()
    spark = begin() if there is None else there
    try:
        activate(spark)
        yield spark
    finally:
        if there is None:
            spark.stop()


def _running() -> SparkSession | None:
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None
