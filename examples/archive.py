"""A stream: orders are read by hand, in batches, as a member of the group "archive", and written to a file.

Asking for the next batch settles the last one, so offsets follow what was written. Run as it is, it reads twelve orders of a
broker in memory.
"""

import asyncio
import tempfile
from pathlib import Path

from rmq_async import Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ


async def archive(namesrv: str, path: Path, count: int) -> None:
    """Appends ``count`` orders to a file."""
    written = 0
    async with Consumer("archive", namesrv=namesrv, topics="OrderTopic", start_from="earliest") as consumer:
        async for batch in consumer.batches(5, wait=0.5):
            with path.open("ab") as file:
                for message in batch:
                    if message.body.startswith(b"order"):
                        file.write(message.body + b"\n")
                    else:
                        batch.mark_dead_letter(message, "no order")
            written += len(batch)
            print(f"{len(batch)} read, {consumer.lag().messages} not settled")
            if written >= count:
                await consumer.stop()  # begins it; asking for the next batch settles this one, and ends the loop


async def main() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("orders", namesrv=server.namesrv) as producer:
            for number in range(12):
                await producer.send(Message("OrderTopic", b"order %d" % number if number != 7 else b"rubbish"))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "orders.txt"
            await archive(server.namesrv, path, 12)
            lines = path.read_bytes().splitlines()
        print(f"{len(lines)} orders, dead letters: {[message.body for message in server.dead_letters('archive')]}")


if __name__ == "__main__":
    asyncio.run(main())
