"""Send many small messages as one request: stored as a whole or not at all, in one queue, one after the other."""

import asyncio

import rmq_async
from rmq_async import Message, Producer, split_batches
from rmq_async.embedded import EmbeddedRocketMQ


async def main() -> None:
    async with EmbeddedRocketMQ() as server, Producer("meters", namesrv=server.namesrv) as producer:
        readings = [Message("MeterTopic", f"{number} kWh".encode(), keys=f"meter-{number}") for number in range(32)]
        result = await producer.send_batch(readings)
        first, last = result.results[0], result.results[-1]
        print(f"{len(result.results)} messages, offsets {first.queue_offset} to {last.queue_offset}, {result.attempts} request")

        many = (Message("MeterTopic", f"{number} kWh".encode()) for number in range(10_000))
        results = await asyncio.gather(*[producer.send_batch(part) for part in split_batches(many, max_bytes=64 * 1024)])
        print(f"{sum(len(each.msg_ids) for each in results)} messages in {len(results)} requests")


rmq_async.run(main())
