"""Lets Spark find ``format("rocketmq")`` without registration: Spark looks for ``DefaultSource`` in modules named
``pyspark_*``.
"""

from rmq_async.spark.source import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
