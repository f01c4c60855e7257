"""A DataFrame to a topic, and the topic as a DataFrame. Runs as it is (extra spark, Java), on a broker inside this process."""

import os
import sys

from pyspark.sql import SparkSession

import rmq_async
from rmq_async import Admin
from rmq_async.testing import ThreadedRocketMQ


async def create_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("OrderTopic", queues=4)


def main(spark: SparkSession, namesrv: str) -> None:
    rmq_async.run(create_topic(namesrv))
    orders = spark.createDataFrame(
        [("order-1", "eu", 30), ("order-2", "us", 12), ("order-3", "eu", 7)], "id string, shop string, price int"
    )
    messages = orders.selectExpr("to_json(struct(*)) AS body", "id AS keys", "shop AS tags")
    messages.write.format("rocketmq").mode("append").option("nameserver", namesrv).option("topic", "OrderTopic").save()

    topic = spark.read.format("rocketmq").option("nameserver", namesrv).option("topic", "OrderTopic").load()
    parsed = topic.selectExpr("from_json(CAST(body AS string), 'id string, shop string, price int') AS row").select("row.*")
    for row in parsed.groupBy("shop").sum("price").orderBy("shop").collect():
        print(f"{row['shop']}: {row['sum(price)']}")

    europe = (
        spark.read.format("rocketmq").option("nameserver", namesrv).option("topic", "OrderTopic").option("tags", "eu").load()
    )
    print(sorted(row["keys"] for row in europe.select("keys").collect()))


if __name__ == "__main__":
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's own processes: this environment, activated or not
    with ThreadedRocketMQ() as server:
        session = SparkSession.builder.master("local[2]").getOrCreate()
        main(session, server.namesrv)
        session.stop()
