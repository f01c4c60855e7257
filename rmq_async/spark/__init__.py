"""RocketMQ topics as Spark DataFrames, batch and streaming, and the pipelines that people run on them (extra ``spark``).

If ``rmq-async[spark]`` is installed where the driver and the executors run, ``spark.read.format("rocketmq")`` works without any
registration, because Spark finds ``pyspark_rocketmq``. docs/spark.md describes options, columns and guarantees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .options import OPTIONS
from .schema import SINK_COLUMNS, SOURCE_COLUMNS
from .source import RocketMQDataSource

if TYPE_CHECKING:
    from .lag import LagListener

__all__ = ["OPTIONS", "SINK_COLUMNS", "SOURCE_COLUMNS", "LagListener", "RocketMQDataSource"]


def __getattr__(name: str) -> Any:
    """Import the listener at its first use, because most processes in which Spark imports this package do not need it."""
    if name == "LagListener":
        from .lag import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
