"""A service with an outbox, as a process that is made to be killed: ``outbox_service.py writer|relay SETTINGS`` (JSON).

The writer commits an order and its message in one transaction each, until all orders are there; what is there already, of a writer
before it, it leaves. Now and then a transaction is rolled back with a message in it. Orders of one customer come one after the
other, and half of the messages have the customer as their sharding key. The relay sends what is left over.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import msgspec
from sqlalchemy import Column, Integer, MetaData, Table, event, insert, select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

import rmq_async
from rmq_async import Message, Producer
from rmq_async.outbox import Outbox

CUSTOMERS = 40
ORDERS = MetaData()


class Settings(msgspec.Struct):
    """``writers``: sessions at a time; ``mine``: which of as many processes this is. ``rolled_back``: part of the transactions.
    ``pause``: seconds of a session between two orders."""

    url: str
    namesrv: str
    topic: str
    table: str
    orders: int
    writers: int
    seed: int = 0
    mine: int = 0
    processes: int = 1
    lease: float = 2.0
    rolled_back: float = 0.05
    relayed: bool = True
    pause: float = 0.0


def orders_table(name: str) -> Table:
    found = ORDERS.tables.get(f"{name}_orders")
    if found is not None:
        return found
    return Table(
        f"{name}_orders", ORDERS, Column("number", Integer, primary_key=True, autoincrement=False), Column("price", Integer)
    )


def engine_for(url: str) -> AsyncEngine:
    if not url.startswith("sqlite"):
        return create_async_engine(url)
    engine = create_async_engine(url, connect_args={"timeout": 60})

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    return engine


def outbox_for(settings: Settings, engine: AsyncEngine, producer: Producer) -> Outbox:
    return Outbox(engine, producer, table=settings.table, lease=settings.lease, poll_interval=0.1)


def message_for(settings: Settings, number: int) -> Message:
    customer = f"customer-{number % CUSTOMERS}"
    return Message(
        settings.topic, b"order %d" % number, keys=f"order-{number}", sharding_key=customer if number // CUSTOMERS % 2 else None
    )


async def write(settings: Settings) -> None:
    engine = engine_for(settings.url)
    sessions = async_sessionmaker(engine)
    orders = orders_table(settings.table)
    chance = random.Random(settings.seed)
    async with engine.connect() as connection:
        there = set((await connection.execute(select(orders.c.number))).scalars())

    async def one_after_the_other(outbox: Outbox, writer: int) -> None:
        for number in range(settings.orders):
            if number % CUSTOMERS % (settings.writers * settings.processes) != writer or number in there:
                continue
            if chance.random() < settings.rolled_back:
                async with sessions() as session:
                    await outbox.add(session, Message(settings.topic, b"rolled back %d" % number))
            async with sessions.begin() as session:
                await session.execute(insert(orders).values(number=number, price=number * 3))
                await outbox.add(session, message_for(settings, number))
            if settings.pause:
                await asyncio.sleep(settings.pause)

    async with Producer("service", namesrv=settings.namesrv) as producer:
        outbox = outbox_for(settings, engine, producer)
        if settings.relayed:
            await outbox.start()
        mine = range(settings.mine * settings.writers, (settings.mine + 1) * settings.writers)
        await asyncio.gather(*(one_after_the_other(outbox, writer) for writer in mine))
        await outbox.stop()
    await engine.dispose()


async def relay(settings: Settings) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    engine = engine_for(settings.url)
    async with outbox_for(settings, engine, Producer("service", namesrv=settings.namesrv, instance_name="relay")):
        await ended.wait()
    await engine.dispose()


async def with_its_owner(work: Coroutine[Any, Any, None]) -> None:
    """Standard input is a pipe from the process that started this one, and ends with it."""
    asyncio.get_running_loop().add_reader(0, os._exit, 3)
    await work


if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[2], type=Settings)
    rmq_async.run(with_its_owner({"writer": write, "relay": relay}[sys.argv[1]](given)))
