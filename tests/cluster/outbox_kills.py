"""Drives processes of ``outbox_service``, kills them and their broker at random moments, and counts what came of it.

The counting has no part in the sending: it holds the orders that the database has against the messages that the topic has.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from sqlalchemy import select, text

from rmq_async import Producer
from rmq_async.outbox import Outbox
from rmq_async.testing.cluster import RealCluster

from .accounting import read_all
from .outbox_service import CUSTOMERS, ORDERS, Settings, engine_for, orders_table, outbox_for

__all__ = ["Count", "Process", "Service", "count", "drained", "prepare", "run_with_kills"]

SERVICE = Path(__file__).with_name("outbox_service.py")
DRAIN = 90.0


class Count(msgspec.Struct):
    """``duplicated``: messages beyond the first of their order. ``of_other_ids``: orders whose copies have different unique ids.
    ``of_nothing``: messages of transactions that were rolled back, or of none. ``out_of_order``: by customer."""

    committed: int
    read: int
    lost: int
    duplicated: int
    of_other_ids: int
    of_nothing: int
    out_of_order: int
    unsent_rows: int
    kills: dict[str, int] = {}
    seconds: float = 0.0

    @property
    def faultless(self) -> bool:
        return not (self.lost or self.of_other_ids or self.of_nothing or self.out_of_order or self.unsent_rows)


class Process:
    """A Python program, started again after each kill."""

    def __init__(self, program: str | Path, *arguments: str) -> None:
        self._command = [sys.executable, "-W", "error", str(program), *arguments]
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.PIPE)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def runs(self) -> bool:
        return self.process.returncode is None

    async def kill(self) -> None:
        if self.runs:
            self.process.kill()
            await self.process.wait()

    async def end(self) -> int:
        if self.runs:
            self.process.terminate()
        return await asyncio.wait_for(self.process.wait(), 30)


class Service(Process):
    """A process of ``outbox_service``."""

    def __init__(self, role: str, settings: Settings) -> None:
        super().__init__(SERVICE, role, msgspec.json.encode(settings).decode())


async def prepare(settings: Settings) -> None:
    """Makes the tables."""
    engine = engine_for(settings.url)
    orders_table(settings.table)
    async with engine.begin() as connection:
        await connection.run_sync(ORDERS.create_all)
    await outbox_for(settings, engine, Producer("unused", namesrv=settings.namesrv)).create_table()
    await engine.dispose()


async def run_with_kills(
    cluster: RealCluster, settings: Settings, *, pause: tuple[float, float] = (0.5, 2.5), most: int = 1_000_000
) -> Count:
    """Until all orders are committed and their messages sent. ``pause``: seconds from one kill to the next; ``most``: kills, after
    which a slow machine, on which a process does little between its start and its end, comes to the end."""
    began = monotonic()
    chance = random.Random(settings.seed)
    await prepare(settings)
    writer, relay = Service("writer", settings), Service("relay", settings)
    kills: Counter[str] = Counter()

    async def broker() -> None:
        await cluster.brokers[0].kill()
        await asyncio.sleep(chance.uniform(0.0, 1.5))
        await cluster.brokers[0].start()

    async def process(service: Service) -> None:
        await service.kill()
        await service.start()

    victims: dict[str, Any] = {"writer": lambda: process(writer), "relay": lambda: process(relay), "broker": broker}
    first = chance.sample(sorted(victims), 3)  # each of them at least once
    await writer.start()
    await relay.start()
    try:
        while writer.runs:
            if kills.total() >= most:
                await writer.process.wait()
                break
            await asyncio.sleep(chance.uniform(*pause))
            victim = first.pop() if first else chance.choice((*["writer", "relay"] * 3, "broker"))
            if writer.runs:
                kills[victim] += 1
                await victims[victim]()
        assert writer.process.returncode == 0, f"the writer ended with {writer.process.returncode}"
        await drained(settings)
        assert await relay.end() == 0
    finally:
        await writer.kill()
        await relay.kill()
    found = await count(settings)
    found.kills, found.seconds = dict(kills), monotonic() - began
    return found


async def drained(settings: Settings) -> None:
    """Waits until nothing is pending."""
    engine = engine_for(settings.url)
    outbox = Outbox(engine, Producer("unused", namesrv=settings.namesrv), table=settings.table)
    async with asyncio.timeout(DRAIN):
        while (await outbox.status()).pending:
            await asyncio.sleep(0.2)
    await engine.dispose()


async def count(settings: Settings) -> Count:
    engine = engine_for(settings.url)
    orders = orders_table(settings.table)
    async with engine.connect() as connection:
        committed = set((await connection.execute(select(orders.c.number))).scalars())
        rows = (await connection.execute(text(f"SELECT id, keys, unique_id, state FROM {settings.table} ORDER BY id"))).all()
    await engine.dispose()
    ids = {row.keys: row.unique_id for row in rows}
    read = sorted(await read_all(settings.namesrv, settings.topic), key=lambda found: (found.queue, found.queue_offset))
    copies: dict[int, list[Any]] = {}
    of_nothing = 0
    for found in read:
        word, _, number = found.body.decode().rpartition(" ")
        if word == "order" and int(number) in committed:
            copies.setdefault(int(number), []).append(found)
        else:
            of_nothing += 1
    return Count(
        committed=len(committed),
        read=len(read),
        lost=len(committed - copies.keys()),
        duplicated=len(read) - of_nothing - len(copies),
        of_other_ids=sum({each.unique_id for each in found} != {ids[f"order-{number}"]} for number, found in copies.items()),
        of_nothing=of_nothing,
        out_of_order=_out_of_order(read),
        unsent_rows=sum(row.state != "SENT" for row in rows) + abs(len(rows) - len(committed)),
    )


def _out_of_order(read: list[Any]) -> int:
    """Messages with a sharding key that first appear after one that was added later."""
    last: dict[str, int] = {}
    seen: set[int] = set()
    wrong = 0
    for found in read:
        number = int(found.body.rpartition(b" ")[2])
        if found.sharding_key is None or number in seen:
            continue
        assert found.sharding_key == f"customer-{number % CUSTOMERS}"
        seen.add(number)
        wrong += number < last.get(found.sharding_key, -1)
        last[found.sharding_key] = max(number, last.get(found.sharding_key, -1))
    return wrong
