"""A DataFrame written to a topic of the real broker is read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_what_is_written_is_read_back(spark: SparkSession, topics: Topics, reading: Callable[..., Any]) -> None:
    topic = topics.make()
    frame = spark.range(1000).selectExpr("cast(id as string) body", "concat('k', id) keys", "'t' tags")
    frame.write.format("rocketmq").mode("append").option("nameserver", topics.namesrv).option("topic", topic).save()
    rows = reading(topic).select("body", "keys", "tags").collect()
    assert sorted((bytes(row.body).decode(), row.keys, row.tags) for row in rows) == sorted(
        (str(number), f"k{number}", "t") for number in range(1000)
    )
