"""Batches into a database: a handler takes up to five clicks, and inserts them in one transaction.

Where it returns, the rows are in, and the offsets follow. Where it raises, what is not marked is delivered again. Run as it is,
it loads clicks of a broker in memory into SQLite.
"""

import asyncio
import json
import sqlite3

from rmq_async import Batch, Consumer, Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ

database = sqlite3.connect(":memory:", check_same_thread=False)  # the handler runs in one thread at a time
database.execute("CREATE TABLE clicks (id TEXT PRIMARY KEY, page TEXT)")


def load(batch: Batch) -> None:  # a plain function: it runs in a thread
    rows = []
    for message in batch:
        try:
            rows.append((message.msg_id, json.loads(message.body)["page"]))
        except ValueError as error:
            batch.mark_dead_letter(message, str(error))
    with database:
        database.executemany("INSERT OR IGNORE INTO clicks VALUES (?, ?)", rows)  # what was loaded before is not loaded again
    print(f"{len(batch)} taken, {len(rows)} loaded")


async def main() -> None:
    async with EmbeddedRocketMQ() as server:
        async with Producer("pages", namesrv=server.namesrv) as producer:
            for number in range(10):
                body = json.dumps({"page": f"/{number}"}).encode() if number != 4 else b"{"
                await producer.send(Message("ClickTopic", body))
        consumer = Consumer("warehouse", namesrv=server.namesrv, start_from="earliest", concurrency=1)
        consumer.subscribe("ClickTopic", load, batch_size=5, batch_wait=0.5, timeout=60.0)
        async with consumer:
            await consumer.wait_settled(10)
        (count,) = database.execute("SELECT count(*) FROM clicks").fetchone()
        print(f"{count} rows, {len(server.dead_letters('warehouse'))} dead letter")


if __name__ == "__main__":
    asyncio.run(main())
