"""Streams written to a topic: every micro-batch once, and one that is replayed under the ids that it had."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .conftest import Topics

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_replayed_micro_batch_repeats_its_ids(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    topic = topics.make()
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()
    for number in range(3):
        (lines / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(100)))

    def run() -> str:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(lines))
        query = (
            frame.selectExpr("value body", "substr(value, 1, 1) shardingKey")
            .writeStream.format("rocketmq")
            .option("nameserver", topics.namesrv)
            .option("topic", topic)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(60)
            assert query.exception() is None
        finally:
            query.stop()
        return str(query.id)

    identity = run()
    found = topics.read(topic)
    batches = {message.body.decode(): message.properties["RMQ_SPARK_ID"].split(":") for message in found}
    assert len(found) == len(batches) == 300
    assert {each[0] for each in batches.values()} == {identity}
    assert Counter(each[1] for each in batches.values()) == {"0": 100, "1": 100, "2": 100}
    assert len(set(map(tuple, batches.values()))) == 300

    for log in checkpoint.joinpath("commits").glob("*2*"):  # as a driver leaves it that is killed before the commit
        log.unlink()
    assert run() == identity
    again = topics.read(topic)
    assert len(again) == 400
    copies = Counter((message.body.decode(), message.properties["RMQ_SPARK_ID"]) for message in again)
    assert len(copies) == 300
    assert {body[0] for body, _ in (each for each, times in copies.items() if times == 2)} == {
        body[0] for body, each in batches.items() if each[1] == "2"
    }


def test_a_stream_that_would_overwrite_is_refused(spark: SparkSession, embedded_topics: Topics, tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "0.txt").write_text("a\n")
    counts = spark.readStream.format("text").load(str(tmp_path / "lines")).groupBy("value").count()
    writer = counts.selectExpr("value body").writeStream.format("rocketmq").option("nameserver", embedded_topics.namesrv)
    query = writer.option("topic", "t").option("checkpointLocation", str(tmp_path / "c")).outputMode("complete").start()
    try:
        with pytest.raises(Exception, match="a topic cannot be overwritten"):
            query.awaitTermination(60)
    finally:
        query.stop()
