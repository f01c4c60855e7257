"""A topic into a Delta table as a stream, exactly once: each message is a row once, also where the driver dies.

Each micro-batch is one transaction of the table, which names the query (``txnAppId``) and the micro-batch (``txnVersion``). Delta
passes over one that it has committed already, because Spark runs it again.

For rows that go into one table as they are read, Delta documents the same of ``writeStream.format("delta")``. ``foreachBatch`` is
for what that sink cannot do: write several tables, or rows that are computed of a whole micro-batch, each with these options.

Needs the extra spark with PySpark 4.2, for which there is a Delta, and Java: ``python spark_delta.py DIRECTORY``. The table and the
checkpoint of the query are in that directory; the messages are on a broker inside this process.
"""

import os
import sys
from pathlib import Path

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

import rmq_async
from rmq_async import Admin
from rmq_async.testing import ThreadedRocketMQ

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"
SETTINGS = {
    "spark.jars.packages": PACKAGE,
    # of what Delta names, Spark has its own: other versions of Hadoop, Parquet and log4j beside it do harm
    "spark.jars.excludes": "org.*:*,com.*:*,javax.*:*,commons-*:*,io.airlift:*,io.unitycatalog:*",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def transaction(query: str, batch: int) -> dict[str, str]:
    """Returns the options by which Delta knows a micro-batch that it has committed."""
    return {"txnAppId": query, "txnVersion": str(batch)}


class Payments:
    """The sink of one query. ``table``: the directory of a Delta table."""

    def __init__(self, table: str) -> None:
        self.table = table

    def add(self, rows: DataFrame, batch: int) -> None:
        """Adds a micro-batch; for ``foreachBatch``."""
        # the id in the checkpoint, not a name: a query with a new checkpoint begins again at micro-batch 0
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        self.write(rows, transaction(query, batch))

    def write(self, rows: DataFrame, options: dict[str, str]) -> None:
        payments = rows.select(
            functions.col("brokerName").alias("broker"),
            functions.col("queueId").alias("queue"),
            functions.col("offset").alias("place"),
            functions.col("keys").alias("customer"),
            functions.col("body").cast("string").cast("bigint").alias("amount"),
        )
        payments.write.format("delta").mode("append").options(**options).save(self.table)

    def read(self, spark: SparkSession) -> DataFrame:
        return spark.read.format("delta").load(self.table)


def check(spark: SparkSession) -> None:
    """Raises RuntimeError where the session has no Delta."""
    try:
        spark.read.format("delta").load("/no-table").schema  # noqa: B018
    except (PySparkException, Py4JJavaError) as error:  # the latter: Spark 4.3
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            raise RuntimeError(
                f"this session of Spark {spark.version} has no Delta; install pyspark 4.2 and start the session "
                f"with spark.jars.packages={PACKAGE}, and the other SETTINGS here"
            ) from error


def send(spark: SparkSession, namesrv: str, first: int, last: int) -> None:
    """Sends payments of three customers."""
    rows = spark.range(first, last).selectExpr("CAST(id AS string) AS body", "concat('customer-', id % 3) AS keys")
    rows.write.format("rocketmq").mode("append").option("nameserver", namesrv).option("topic", "PaymentTopic").save()


def run(spark: SparkSession, namesrv: str, payments: Payments, checkpoint: str) -> None:
    """Adds what there is now, 400 messages at a time, and ends."""
    messages = (
        spark.readStream.format("rocketmq")
        .options(nameserver=namesrv, topic="PaymentTopic", startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .load()
    )
    query = messages.writeStream.foreachBatch(payments.add).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("PaymentTopic", queues=4)


def main(spark: SparkSession, namesrv: str, place: Path) -> None:
    check(spark)
    payments = Payments(str(place / "payments"))
    rmq_async.run(create_topic(namesrv))
    for first, last in ((0, 1000), (1000, 1300)):
        send(spark, namesrv, first, last)
        run(spark, namesrv, payments, str(place / "checkpoint"))
    for row in payments.read(spark).groupBy("customer").agg({"*": "count", "amount": "sum"}).orderBy("customer").collect():
        print(f"{row['customer']}: {row['count(1)']} payments, {row['sum(amount)']} in all")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python spark_delta.py DIRECTORY")
    if not pyspark.__version__.startswith("4.2."):
        sys.exit(f"{PACKAGE} is for Spark 4.2, and this is pyspark {pyspark.__version__}; install pyspark==4.2.*")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own processes: this environment, activated or not
    with ThreadedRocketMQ() as server:
        builder = SparkSession.builder.master("local[2]").config(map=SETTINGS)
        main(builder.getOrCreate(), server.namesrv, Path(sys.argv[1]).absolute())
        builder.getOrCreate().stop()
