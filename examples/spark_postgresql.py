"""A topic into PostgreSQL as a stream, exactly once: each message counts once, also where the driver dies within a micro-batch.

The tasks write the rows of a micro-batch into a staging table, by JDBC. Then one transaction of the driver adds them to the totals
and records the micro-batch; one that is recorded already, because Spark runs it again, changes nothing.

Needs the extras spark and outbox, Java, and a database: ``python spark_postgresql.py HOST:PORT/DATABASE USER``, with its password
in PGPASSWORD. The messages are on a broker inside this process.
"""

import asyncio
import os
import sys
import tempfile
import uuid

import asyncpg
from pyspark.sql import DataFrame, SparkSession, functions

import rmq_async
from rmq_async import Admin
from rmq_async.testing import ThreadedRocketMQ

TABLES = """
CREATE TABLE IF NOT EXISTS payments_staged (
    query text, run text, broker text, queue int, place bigint, customer text, amount bigint
);
CREATE TABLE IF NOT EXISTS micro_batches (query text, batch bigint, PRIMARY KEY (query, batch));
CREATE TABLE IF NOT EXISTS totals (customer text PRIMARY KEY, payments bigint NOT NULL, amount bigint NOT NULL);
"""
RECORD = "INSERT INTO micro_batches VALUES ($1, $2) ON CONFLICT DO NOTHING"
ADD = """
INSERT INTO totals SELECT customer, count(*), sum(amount)
FROM (SELECT DISTINCT broker, queue, place, customer, amount FROM payments_staged WHERE run = $1) AS each_once
GROUP BY customer
ON CONFLICT (customer) DO UPDATE
SET payments = totals.payments + excluded.payments, amount = totals.amount + excluded.amount
"""  # each message once: a task that had committed its rows may be run again
CLEAR = "DELETE FROM payments_staged WHERE query = $1"  # the rows of runs that died as well


class Totals:
    """The sink of one query. ``database``: host:port/database."""

    def __init__(self, database: str, user: str, password: str) -> None:
        self.url = f"postgresql://{database}"
        self.user = user
        self.password = password

    def add(self, rows: DataFrame, batch: int) -> None:
        """Adds a micro-batch; for ``foreachBatch``."""
        # the id in the checkpoint: a query with a new checkpoint begins again at micro-batch 0
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        run = uuid.uuid4().hex  # so that rows of an earlier run, whose tasks may still write, do not count
        self.stage(rows, query, run)
        asyncio.run(self.move(query, batch, run))

    def stage(self, rows: DataFrame, query: str, run: str) -> None:
        staged = rows.select(
            functions.lit(query).alias("query"),
            functions.lit(run).alias("run"),
            functions.col("brokerName").alias("broker"),
            functions.col("queueId").alias("queue"),
            functions.col("offset").alias("place"),
            functions.col("keys").alias("customer"),
            functions.col("body").cast("string").cast("bigint").alias("amount"),
        )
        properties = {"user": self.user, "password": self.password, "driver": "org.postgresql.Driver"}
        staged.write.jdbc(f"jdbc:{self.url}", "payments_staged", mode="append", properties=properties)

    async def move(self, query: str, batch: int, run: str) -> None:
        connection = await self.connect()
        try:
            async with connection.transaction():
                if await connection.execute(RECORD, query, batch) == "INSERT 0 1":  # 0 0: it is committed already
                    await connection.execute(ADD, run)
                await connection.execute(CLEAR, query)
        finally:
            await connection.close()

    async def create_tables(self) -> None:
        connection = await self.connect()
        try:
            await connection.execute(TABLES)
        finally:
            await connection.close()

    async def read(self) -> list[tuple[str, int, int]]:
        connection = await self.connect()
        try:
            return [tuple(row) for row in await connection.fetch("SELECT * FROM totals ORDER BY customer")]
        finally:
            await connection.close()

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(self.url, user=self.user, password=self.password)


def send(spark: SparkSession, namesrv: str, first: int, last: int) -> None:
    """Sends payments of three customers."""
    rows = spark.range(first, last).selectExpr("CAST(id AS string) AS body", "concat('customer-', id % 3) AS keys")
    rows.write.format("rocketmq").mode("append").option("nameserver", namesrv).option("topic", "PaymentTopic").save()


def run(spark: SparkSession, namesrv: str, totals: Totals, checkpoint: str) -> None:
    """Adds what there is now, 400 messages at a time, and ends."""
    payments = (
        spark.readStream.format("rocketmq")
        .options(nameserver=namesrv, topic="PaymentTopic", startingOffsets="earliest", maxOffsetsPerTrigger="400")
        .load()
    )
    query = payments.writeStream.foreachBatch(totals.add).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("PaymentTopic", queues=4)


def main(spark: SparkSession, namesrv: str, totals: Totals) -> None:
    rmq_async.run(create_topic(namesrv))
    rmq_async.run(totals.create_tables())
    with tempfile.TemporaryDirectory() as checkpoint:
        for first, last in ((0, 1000), (1000, 1300)):
            send(spark, namesrv, first, last)
            run(spark, namesrv, totals, checkpoint)
    for customer, payments, amount in rmq_async.run(totals.read()):
        print(f"{customer}: {payments} payments, {amount} in all")


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own processes: this environment, activated or not
    with ThreadedRocketMQ() as server:
        session = SparkSession.builder.master("local[2]").config("spark.jars.packages", "org.postgresql:postgresql:42.7.8")
        main(session.getOrCreate(), server.namesrv, Totals(sys.argv[1], sys.argv[2], os.environ.get("PGPASSWORD", "")))
        session.getOrCreate().stop()
