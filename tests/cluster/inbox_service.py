"""A service whose handlers take effect once, as a process that is made to be killed: ``inbox_service.py SETTINGS`` (JSON).

Each order becomes one payment and one receipt, in one transaction with the inbox. No constraint keeps a second payment of an order
out of the table.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec
from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

import rmq_async
from rmq_async import Consumer, Message, MessageExt, Producer, Retry
from rmq_async.errors import RocketMQError
from rmq_async.inbox import Inbox
from rmq_async.outbox import Outbox
from rmq_async.outbox.store import DATABASE_ERRORS

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from tests.cluster.outbox_service import engine_for

PAYMENTS = MetaData()


class Settings(msgspec.Struct):
    """``topic``: of the orders. ``receipts``: the topic of the messages that handlers send. ``group``: names tables, too."""

    url: str
    namesrv: str
    topic: str
    receipts: str
    group: str
    orders: int
    seed: int = 0
    mine: int = 0
    lease: float = 2.0


def payments_table(settings: Settings) -> Table:
    name = f"payments_{settings.group.replace('-', '_')}"
    found = PAYMENTS.tables.get(name)
    return Table(name, PAYMENTS, Column("id", Integer, primary_key=True), Column("number", Integer)) if found is None else found


def inbox_for(settings: Settings) -> Inbox:
    return Inbox(group=settings.group, table=f"inbox_{settings.group.replace('-', '_')}")


def outbox_for(settings: Settings, engine: AsyncEngine, producer: Producer) -> Outbox:
    table = f"outbox_{settings.group.replace('-', '_')}"
    return Outbox(engine, producer, table=table, lease=settings.lease, poll_interval=0.1)


async def serve(settings: Settings) -> None:
    """Until SIGTERM, or the end of the standard input: a pipe from the process that started this one."""
    asyncio.get_running_loop().add_reader(0, os._exit, 3)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engine = engine_for(settings.url)
    sessions = async_sessionmaker(engine)
    payments, inbox = payments_table(settings), inbox_for(settings)
    producer = Producer("service", namesrv=settings.namesrv, instance_name=f"service-{settings.mine}")
    outbox = outbox_for(settings, engine, producer)
    consumer = Consumer(
        settings.group,
        namesrv=settings.namesrv,
        start_from="earliest",
        concurrency=16,
        handover_timeout=2.0,
        retry=Retry(limit=1000, delays=(1.0,)),
        instance_name=f"consumer-{settings.mine}",
    )

    @consumer.handler(settings.topic)
    async def pay(message: MessageExt) -> None:
        number = int(message.body.split()[1])
        async with sessions.begin() as session:
            if not await inbox.first(session, message):
                return
            await session.execute(insert(payments).values(number=number))
            await outbox.add(session, Message(settings.receipts, b"receipt %d" % number, keys=f"order-{number}"))

    while True:
        try:
            await outbox.start()
            await consumer.start()
        except (RocketMQError, *DATABASE_ERRORS) as error:
            print(f"the database or the broker is away: {error!r}"[:200], file=sys.stderr)
            await asyncio.sleep(0.2)
        else:
            break
    await ended.wait()
    await consumer.stop()
    await outbox.stop()
    await engine.dispose()


if __name__ == "__main__":
    rmq_async.run(serve(msgspec.json.decode(sys.argv[1], type=Settings)))
