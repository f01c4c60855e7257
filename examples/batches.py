"""Batches into a database: a group consumer loads clicks with one INSERT for many messages, and commits offsets afterwards.

A row that cannot be read becomes a dead letter; the others of its batch are loaded all the same. Needs the extra ``outbox`` for
SQLAlchemy. In production: PostgreSQL instead of the SQLite file.
"""

import json
import os
import tempfile

from sqlalchemy import Column, Integer, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import create_async_engine

import rmq_async
from rmq_async import Admin, Batch, Consumer, Message, MessageExt, Producer
from rmq_async.embedded import EmbeddedRocketMQ

CLICKS = Table("clicks", MetaData(), Column("page", String), Column("seconds", Integer))


def parse(message: MessageExt) -> dict[str, object]:
    click = json.loads(message.body)
    return {"page": str(click["page"]), "seconds": int(click["seconds"])}


async def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        async with EmbeddedRocketMQ() as server:
            os.environ["NAMESRV_ADDR"] = server.namesrv
            await load_clicks(f"sqlite+aiosqlite:///{place}/clicks.db")
            print(f"dead letters: {[message.body for message in server.dead_letters('warehouse')]}")


async def load_clicks(url: str) -> None:
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(CLICKS.metadata.create_all)

    consumer = Consumer("warehouse", start_from="earliest")

    @consumer.handler("ClickTopic", batch_size=500, batch_wait=0.2, timeout=60.0)
    async def load(batch: Batch) -> None:
        rows = []
        for message in batch:
            try:
                rows.append(parse(message))
            except (KeyError, ValueError) as error:
                batch.mark_dead_letter(message, repr(error))  # the other messages are done when this returns
        if rows:
            async with engine.begin() as connection:
                await connection.execute(insert(CLICKS), rows)

    async with Admin() as admin, Producer("shop") as producer:
        await admin.create_topic("ClickTopic", queues=4)
        for number in range(100):
            click = json.dumps({"page": f"/{number % 7}", "seconds": number}).encode()
            await producer.send(Message("ClickTopic", b"not JSON" if number == 50 else click))

    async with consumer:
        await consumer.wait_idle()

    async with engine.connect() as connection:
        print(f"{await connection.scalar(select(func.count()).select_from(CLICKS))} rows")
    await engine.dispose()


if __name__ == "__main__":
    rmq_async.run(main())
