"""A program that uses Spark Connect: ``python connect_client.py URL NAMESRV PLACE``; prints a JSON object for each step.

``PLACE``: a directory for files of Spark. The topics Written and Published exist.
"""

from __future__ import annotations

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.archive import archive
from rmq_async.spark.pipelines.publish import publish


def main(url: str, namesrv: str, place: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    options = {"nameserver": namesrv}

    def said(**given: object) -> None:
        print(json.dumps(given), flush=True)

    rows = spark.range(40).selectExpr("CAST(id AS string) AS body", "concat('k', id % 3) AS keys")
    rows.write.format("rocketmq").mode("append").options(**options, topic="Written").save()
    read = spark.read.format("rocketmq").options(**options, topic="Written").load()
    said(written=sorted(bytes(row.body).decode() for row in read.collect()))

    stream = spark.readStream.format("rocketmq").options(**options, topic="Written", startingOffsets="earliest").load()
    query = stream.select("offset", "body").writeStream.format("parquet").option("checkpointLocation", f"{place}/checkpoint")
    query.trigger(availableNow=True).start(f"{place}/streamed").awaitTermination()
    said(streamed=spark.read.parquet(f"{place}/streamed").count())

    try:
        spark.read.format("rocketmq").options(**options, topik="Written").load().collect()
    except PySparkException as error:
        said(error=str(error))

    published = publish(rows, "Published", body="body", keys=["keys"], options=options, rate=1000)
    said(published=published.messages, arrived=published.arrived)
    try:
        archive(spark, "Written", f"{place}/archive", options=options)
    except ConfigError as error:
        said(refused=str(error))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
