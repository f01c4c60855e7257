"""RocketMQ topics as Spark DataFrames, batch and streaming, and the pipelines that people run on them (extra ``spark``).

With ``rmq-async[spark]`` installed where the driver and the executors run, ``spark.read.format("rocketmq")`` works without any
registration: Spark finds ``pyspark_rocketmq``. Options, columns and guarantees: docs/spark.md.
"""

from __future__ import annotations

from .options import OPTIONS
from .schema import SINK_COLUMNS, SOURCE_COLUMNS
from .source import RocketMQDataSource

__all__ = ["OPTIONS", "SINK_COLUMNS", "SOURCE_COLUMNS", "RocketMQDataSource"]
