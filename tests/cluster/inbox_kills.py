"""Drives processes of ``inbox_service``, kills them, the broker and the database at random moments, and counts the effects.

The counting has no part in the handling: it holds the orders that were sent against the payments and receipts of the database, and
the messages of receipts in their topic.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import func, select, text

from rmq_async import Message, Producer
from rmq_async.testing.cluster import RealCluster

from ..support.postgres import PostgreSQL
from .accounting import read_all
from .inbox_service import PAYMENTS, Settings, inbox_for, outbox_for, payments_table
from .inbox_service import __file__ as SERVICE
from .outbox_kills import Process
from .outbox_service import engine_for

__all__ = ["Effects", "run_with_kills"]

COPIES = 0.1
"""Part of the orders that are sent twice with one unique id, as a producer does after an answer that was lost."""
PATIENCE = 240.0


class Effects(msgspec.Struct):
    """``copies``: orders whose message was sent twice. ``lost``: orders without a payment. ``twice``: payments beyond the first of
    their order. ``receipts``: rows of the outbox; ``receipts_lost``: those whose message is not in the topic;
    ``receipts_of_nothing``: messages without a row. ``handled``: rows of the inbox."""

    orders: int
    copies: int
    paid: int
    lost: int
    twice: int
    receipts: int
    receipts_lost: int
    receipts_of_nothing: int
    handled: int
    kills: dict[str, int] = {}
    seconds: float = 0.0

    @property
    def faultless(self) -> bool:
        wrong = self.lost or self.twice or self.receipts_lost or self.receipts_of_nothing
        return not wrong and self.orders == self.paid == self.receipts == self.handled


async def send_orders(settings: Settings) -> int:
    """Sends all orders, some of them twice; returns how many were."""
    chance = random.Random(settings.seed)
    copies = 0
    async with Producer("orders", namesrv=settings.namesrv, batching=True) as producer:

        async def send(number: int) -> None:
            await producer.send(Message(settings.topic, b"order %d" % number, unique_id=f"{settings.group}-{number}"))

        for first in range(0, settings.orders, 500):
            numbers = list(range(first, min(first + 500, settings.orders)))
            again = [number for number in numbers if chance.random() < COPIES]
            copies += len(again)
            await asyncio.gather(*(send(number) for number in numbers + again))
    return copies


async def prepare(settings: Settings) -> None:
    """Makes the tables."""
    engine = engine_for(settings.url)
    payments_table(settings)
    async with engine.begin() as connection:
        await connection.run_sync(PAYMENTS.create_all)
    await inbox_for(settings).create_table(engine)
    await outbox_for(settings, engine, Producer("unused", namesrv=settings.namesrv)).create_table()
    await engine.dispose()


async def run_with_kills(
    cluster: RealCluster,
    settings: Settings,
    database: PostgreSQL | None,
    *,
    pause: tuple[float, float] = (0.5, 2.5),
    most: int = 1_000_000,
) -> Effects:
    """Until all orders are paid and all receipts sent. ``database``: None for one that is a file. ``most``: kills."""
    chance = random.Random(settings.seed)
    await prepare(settings)
    copies = await send_orders(settings)
    began = monotonic()
    services = [
        Process(SERVICE, msgspec.json.encode(msgspec.structs.replace(settings, mine=number)).decode()) for number in range(2)
    ]
    kills: Counter[str] = Counter()

    async def broker() -> None:
        await cluster.brokers[0].kill()
        await asyncio.sleep(chance.uniform(0.0, 1.5))
        await cluster.brokers[0].start()

    async def consumer() -> None:
        service = chance.choice(services)
        await service.kill()
        await service.start()

    victims: dict[str, Any] = {"consumer": consumer, "broker": broker}
    if database is not None:

        async def postgres() -> None:
            await asyncio.to_thread(database.kill)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await asyncio.to_thread(database.start)

        victims["database"] = postgres
    first = chance.sample(sorted(victims), len(victims))  # each of them at least once
    for service in services:
        await service.start()
    try:
        async with asyncio.timeout(PATIENCE + settings.orders / 50):
            while first or not await is_over(settings):
                await asyncio.sleep(chance.uniform(*pause))
                if kills.total() >= most:
                    continue
                victim = first.pop() if first else chance.choice((*["consumer"] * 4, *victims))
                kills[victim] += 1
                await victims[victim]()
        for service in services:
            ended = await service.end()
            assert ended in (0, -signal.SIGTERM), ended  # one that has just begun knows no signal yet
    finally:
        for service in services:
            await service.kill()
    found = await count(settings, copies)
    found.kills, found.seconds = dict(kills), monotonic() - began
    return found


async def is_over(settings: Settings) -> bool:
    """Whether each order is paid and no receipt waits to be sent."""
    engine = engine_for(settings.url)
    payments = payments_table(settings)
    try:
        async with engine.connect() as connection:
            paid = (await connection.execute(select(func.count(payments.c.number.distinct())))).scalar_one()
        return paid == settings.orders and not (await outbox_for(settings, engine, Producer("unused")).status()).pending
    finally:
        await engine.dispose()


async def count(settings: Settings, copies: int) -> Effects:
    engine = engine_for(settings.url)
    payments, name = payments_table(settings), settings.group.replace("-", "_")
    async with engine.connect() as connection:
        paid = Counter((await connection.execute(select(payments.c.number))).scalars())
        rows = set((await connection.execute(text(f"SELECT keys FROM outbox_{name}"))).scalars())
        total = (await connection.execute(text(f"SELECT count(*) FROM outbox_{name}"))).scalar_one()
        handled = (await connection.execute(text(f"SELECT count(*) FROM inbox_{name}"))).scalar_one()
    await engine.dispose()
    sent = {message.keys[0] for message in await read_all(settings.namesrv, settings.receipts)}
    return Effects(
        orders=settings.orders,
        copies=copies,
        paid=len(paid),
        lost=settings.orders - len(paid),
        twice=paid.total() - len(paid),
        receipts=total,
        receipts_lost=len(rows - sent),
        receipts_of_nothing=len(sent - rows),
        handled=handled,
    )
