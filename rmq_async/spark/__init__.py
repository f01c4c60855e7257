"""RocketMQ topics as Spark DataFrames, batch and streaming, and the pipelines that people run on them (extra ``spark``).

With ``rmq-async[spark]`` installed where the driver and the executors run, ``spark.read.format("rocketmq")`` works without any
registration: Spark finds ``pyspark_rocketmq``. Options, columns and guarantees: docs/spark.md.
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
    """Import the listener at its first use: most processes in which Spark imports this package need none."""
    if name == "LagListener":
        from .lag import LagListener

        return LagListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
