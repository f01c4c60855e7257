"""A picture of a stream that works off a backlog, made from what the stream reports of each micro-batch (extras spark and bench).

Runs as it is, on a broker inside this process, and writes the picture that its argument names, spark_backlog.png without one.
"""

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure
from pyspark.sql import SparkSession

import rmq_async
from rmq_async import Admin
from rmq_async.testing import ThreadedRocketMQ


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("BacklogTopic", queues=4)


def main(spark: SparkSession, namesrv: str, picture: str, messages: int = 60_000, per_batch: int = 5_000) -> None:
    rmq_async.run(create_topic(namesrv))
    rows = spark.range(messages).selectExpr("repeat('x', 100) AS body")
    rows.write.format("rocketmq").mode("append").option("nameserver", namesrv).option("topic", "BacklogTopic").save()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("rocketmq")
            .option("nameserver", namesrv)
            .option("topic", "BacklogTopic")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(per_batch))
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    seconds, left = drained(batches)
    draw(seconds, left, batches, picture)
    print(f"{messages} messages in {len(batches)} micro-batches, {left[-1]} left")


def drained(batches: Sequence[dict[str, Any]]) -> tuple[list[float], list[int]]:
    """The end of each micro-batch, in seconds since the first one began, and the backlog then; before them the backlog at first."""
    starts = [datetime.fromisoformat(batch["timestamp"]).timestamp() for batch in batches]
    ends = [
        start - starts[0] + batch["durationMs"]["triggerExecution"] / 1000 for start, batch in zip(starts, batches, strict=True)
    ]
    left = []
    for batch in batches:
        latest, end = (json.loads(batch["sources"][0][name])["q"] for name in ("latestOffset", "endOffset"))
        left.append(sum(latest.values()) - sum(end[queue] for queue in latest))
    return [0.0, *ends], [left[0] + batches[0]["numInputRows"], *left]


def draw(seconds: list[float], left: list[int], batches: Sequence[dict[str, Any]], picture: str) -> None:
    figure = Figure(figsize=(7.0, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.fill_between(seconds, left, step="post", color="tab:blue", alpha=0.25)
    axis.step(seconds, left, where="post", color="tab:blue", label="backlog")
    axis.set_xlabel("seconds")
    axis.set_ylabel("messages behind")
    axis.set_ylim(bottom=0)
    rates = axis.twinx()
    widths = [after - before for before, after in pairwise(seconds)]
    speeds = [batch["numInputRows"] / width for batch, width in zip(batches, widths, strict=True)]
    middles = [before + width / 2 for before, width in zip(seconds, widths, strict=False)]
    rates.plot(middles, speeds, color="tab:orange", marker=".", label="messages a second")
    rates.set_ylabel("messages a second")
    rates.set_ylim(0, 1.1 * max(speeds))
    figure.legend(loc="outside upper center", ncols=2)
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own processes: this environment, activated or not
    with ThreadedRocketMQ() as server:
        session = SparkSession.builder.master("local[2]").getOrCreate()
        main(session, server.namesrv, sys.argv[1] if len(sys.argv) > 1 else "spark_backlog.png")
        session.stop()
