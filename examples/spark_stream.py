"""A topic to Parquet as a stream, exactly once by its checkpoint: what came since the last run, and how far behind the stream is.

Runs as it is (extra spark, Java), on a broker inside this process.
"""

import json
import os
import sys
import tempfile
from typing import Any

from pyspark.sql import SparkSession

import rmq_async
from rmq_async import Admin
from rmq_async.testing import ThreadedRocketMQ


def lag(progress: dict[str, Any]) -> int:
    """Messages that the topic held and the stream had not read at the end of a micro-batch."""
    (source,) = progress["sources"]
    latest, end = (json.loads(source[name])["q"] for name in ("latestOffset", "endOffset"))
    return sum(offset - end.get(queue, 0) for queue, offset in latest.items())


def send(spark: SparkSession, namesrv: str, first: int, last: int) -> None:
    rows = spark.range(first, last).selectExpr("CAST(id AS string) AS body")
    rows.write.format("rocketmq").mode("append").option("nameserver", namesrv).option("topic", "ClickTopic").save()


def run(spark: SparkSession, namesrv: str, place: str) -> None:
    """Reads what there is now, 400 messages at a time, and ends."""
    stream = (
        spark.readStream.format("rocketmq")
        .option("nameserver", namesrv)
        .option("topic", "ClickTopic")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "400")
        .load()
    )
    query = (
        stream.select("offset", "queueId", "body")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{place}/clicks")
    )
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    print("lag after each micro-batch:", [lag(progress) for progress in batches])
    print(spark.read.parquet(f"{place}/clicks").count(), "rows")


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("ClickTopic", queues=4)


def main(spark: SparkSession, namesrv: str) -> None:
    rmq_async.run(create_topic(namesrv))
    with tempfile.TemporaryDirectory() as place:
        send(spark, namesrv, 0, 1000)
        run(spark, namesrv, place)
        send(spark, namesrv, 1000, 1300)
        run(spark, namesrv, place)


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own processes: this environment, activated or not
    with ThreadedRocketMQ() as server:
        session = SparkSession.builder.master("local[2]").getOrCreate()
        main(session, server.namesrv)
        session.stop()
