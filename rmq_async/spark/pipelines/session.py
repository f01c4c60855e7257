"""Provides the Spark session a pipeline runs in: the existing one of any thread, or a new one.

Spark looks for data sources of Python only in the session that is active in the calling thread, and each Python thread begins
without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

__all__ = ["activate", "running_or"]


def activate(spark: SparkSession) -> None:
    """Makes ``spark`` the active session of this thread, by creating a frame."""
    if SparkSession.getActiveSession() is not spark:
        spark.createDataFrame([], "nothing int")


@contextmanager
def running_or(begin: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Yields the session of this process, else one that ``begin`` makes and that ends here; active in this thread."""
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
