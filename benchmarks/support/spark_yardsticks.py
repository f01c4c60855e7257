"""What benchmarks/spark.py compares Spark's figures with: a data source that makes rows out of nothing, and plain processes of the
client, ``python support/spark_yardsticks.py read|send NAMESRV TOPIC MESSAGES BODY``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the folder of the benchmarks
from support.clusters import BenchmarkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["QUEUES", "in_process", "register_generator"]

QUEUES: Final = 8
BATCH: Final = 96
"""Messages of a plain process's batch: as many bytes as the default of ``batchBytes`` makes of them."""
SENDERS: Final = 8


def register_generator(spark: SparkSession) -> None:
    """``format("generator")``: rows as RocketMQ's, made once in each worker, but for their offsets."""
    import pyarrow as pa
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    from rmq_async.spark.arrow import ROWS, Rows, arrow_schema, record_batches
    from rmq_async.spark.schema import SOURCE_COLUMNS, source_ddl
    from rmq_protocol.columns import read_columns
    from rmq_protocol.message import MessageQueue
    from rmq_protocol.stored import encode_stored

    properties = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02CLUSTER\x01DefaultCluster\x02RMQ_SPARK_ID\x01{:032x}:0:0:{}\x02"

    class Reader(DataSourceReader):
        def __init__(self, options: dict[str, str]) -> None:
            self.rows = int(options["rows"]) // QUEUES
            self.body = int(options["body"])
            self.columns = tuple((options.get("columns") or ",".join(SOURCE_COLUMNS)).split(","))

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(QUEUES)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            block = b"".join(
                encode_stored(
                    topic="Generated",
                    body=b"%016d" % number + bytes(self.body - 16),
                    properties=properties.format(number, number, number).encode(),
                    queue_offset=number,
                    born_time_ms=1_700_000_000_000,
                    store_time_ms=1_700_000_000_000,
                )
                for number in range(ROWS)
            )
            made = Rows(self.columns)
            queue = MessageQueue("Generated", "broker-a", partition.value)
            read_columns(block, made.stored, queue)
            made.came(queue)
            (batch,) = record_batches([made], self.columns)
            schema = arrow_schema(self.columns)
            place = schema.get_field_index("offset")
            for start in range(0, self.rows, ROWS):
                count = min(ROWS, self.rows - start)
                arrays = batch.slice(0, count).columns
                arrays[place] = pa.array(range(start, start + count), pa.int64())
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    class Generator(DataSource):
        @classmethod
        def name(cls) -> str:
            return "generator"

        def schema(self) -> str:
            return source_ddl(tuple((self.options.get("columns") or ",".join(SOURCE_COLUMNS)).split(",")))

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader(dict(self.options))

    spark.dataSource.register(Generator)


def main(what: str, namesrv: str, topic: str, messages: str, body: str) -> None:
    import uvloop

    work = plain_send(namesrv, topic, int(messages), int(body)) if what == "send" else plain_read(namesrv, topic)
    count, seconds = uvloop.run(work)
    print(json.dumps({"messages": count, "seconds": seconds}))


async def plain_send(namesrv: str, topic: str, count: int, size: int) -> tuple[int, float]:
    from rmq_async import Message, Producer

    rest = bytes(size - 16)
    starts = iter(range(0, count, BATCH))

    async with Producer("plain", namesrv=namesrv) as producer:

        async def send() -> None:
            for start in starts:
                numbers = range(start, min(start + BATCH, count))
                await producer.send_batch([Message(topic, b"%016d" % number + rest) for number in numbers])

        begun = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(SENDERS)))
        return count, time.perf_counter() - begun


async def plain_read(namesrv: str, topic: str) -> tuple[int, float]:
    from rmq_async import PullConsumer

    async with PullConsumer("plain", namesrv=namesrv) as consumer:
        begun = time.perf_counter()
        count = 0
        async for _ in consumer.read(topic):
            count += 1
        return count, time.perf_counter() - begun


def in_process(what: str, namesrv: str, topic: str, messages: int, body: int) -> float:
    """Messages a second of a plain process."""
    command = [sys.executable, __file__, what, namesrv, topic, str(messages), str(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise BenchmarkError(f"plain {what}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["messages"] != messages:
        raise BenchmarkError(f"plain {what}: {result['messages']} messages instead of {messages}")
    return float(result["messages"] / result["seconds"])


if __name__ == "__main__":
    main(*sys.argv[1:])
