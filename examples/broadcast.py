"""Broadcast: each process reads all exchange rates into its memory, and keeps its positions in a file across restarts.

In production: ``NAMESRV_ADDR=10.0.0.1:9876 python broadcast.py positions.json``, one file for each process. Run as it is, it reads
the rates of a broker in memory, stops, and goes on where it was.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import rmq_async
from rmq_async import Consumer, Message, MessageExt, MessageQueue, Producer


class FilePositions:
    """Keeps positions in a file that is replaced as a whole, so that a crash leaves the old ones or the new ones."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def load(self, topic: str) -> Mapping[MessageQueue, int]:
        return await asyncio.to_thread(self._read, topic)

    async def save(self, positions: Mapping[MessageQueue, int]) -> None:
        await asyncio.to_thread(self._write, positions)

    def _read(self, topic: str) -> dict[MessageQueue, int]:
        if not self.path.exists():
            return {}
        rows = json.loads(self.path.read_text())
        return {MessageQueue(*queue): offset for *queue, offset in rows if queue[0] == topic}

    def _write(self, positions: Mapping[MessageQueue, int]) -> None:
        draft = self.path.with_suffix(".new")
        with draft.open("w") as file:
            json.dump([[*queue, offset] for queue, offset in positions.items()], file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)


rates: dict[str, float] = {}


def reader(path: Path) -> Consumer:
    consumer = Consumer("rates", broadcast=FilePositions(path), start_from="earliest")  # at the name servers of $NAMESRV_ADDR

    @consumer.handler("RateTopic", concurrency=1)
    async def note(message: MessageExt) -> None:
        currency, rate = message.body.decode().split()
        rates[currency] = float(rate)

    return consumer


async def publish(*lines: str) -> None:
    async with Producer("bank") as producer:
        for line in lines:
            await producer.send(Message("RateTopic", line.encode(), keys=line.split()[0]), key=line.split()[0])


async def main() -> None:
    from rmq_async.embedded import EmbeddedRocketMQ

    async with EmbeddedRocketMQ() as server:
        os.environ["NAMESRV_ADDR"] = server.namesrv
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "positions.json"
            for lines in (("EUR 1.00", "USD 1.09"), ("USD 1.10", "CHF 0.95")):
                await publish(*lines)
                async with reader(path) as consumer:
                    settled = await consumer.wait_settled(len(lines))
                print(f"{len(settled)} read: {rates}")


if __name__ == "__main__":
    if "NAMESRV_ADDR" in os.environ:
        rmq_async.run(reader(Path(sys.argv[1])).run())
    else:
        rmq_async.run(main())
