"""What an outbox costs: ``python benchmarks/outbox.py [--rows 200000] [--rounds 3] [--only add|relay] [--database NAME]``.

add: ``Outbox.add`` beside the bare insert of the same row, in the same session, in transactions of a hundred; taken in turn within
each round. relay: a backlog sent to a real broker beside the same database reading and updating the same rows in the same portions
without sending them, the faster of one portion after the other and of reading the next while the last is written. Memory is that of
this process: at the start of a relay run, and its highest. Needs the extra ``test`` and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
from sqlalchemy import event, insert, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import rmq_async
from rmq_async import Admin, Message, Producer
from rmq_async.outbox import Outbox
from rmq_async.outbox.rows import row_of
from rmq_async.outbox.store import Sent, Store
from rmq_async.testing.cluster import RealCluster
from tests.support.postgres import postgres

BODY = b"x" * 256
PORTION = 256


class Database:
    def __init__(self, engine: AsyncEngine, producer: Producer, topic: str) -> None:
        self.engine, self.producer, self.topic = engine, producer, topic
        self.table = f"outbox_{uuid.uuid4().hex[:8]}"
        self.outbox = Outbox(engine, producer, table=self.table, batch_size=PORTION)

    async def fill(self, rows: int) -> None:
        """An empty table, and then so many rows that are due."""
        async with self.engine.begin() as connection:
            await connection.run_sync(self.outbox.metadata.drop_all)
            await connection.run_sync(self.outbox.metadata.create_all)
        columns = bare_row(self.topic)
        table = self.outbox.metadata.tables[self.table]
        async with self.engine.begin() as connection:
            for first in range(0, rows, 1000):
                many = [columns | {"unique_id": f"{number:032X}"} for number in range(first, min(rows, first + 1000))]
                await connection.execute(insert(table), many)
        if self.engine.dialect.name == "postgresql":
            async with self.engine.connect() as connection:
                await (await connection.execution_options(isolation_level="AUTOCOMMIT")).execute(
                    text(f"VACUUM ANALYZE {self.table}")
                )

    def store(self) -> Store:
        return Store(self.engine, self.outbox.metadata.tables[self.table], "benchmark", 600.0)


def bare_row(topic: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    message = Message(topic, BODY, tags="paid", keys="order-17", properties={"customer": "17"})
    return row_of(message, "0" * 32, 0.0, 1 << 22) | {
        "state": "PENDING", "owner": None, "lease": None, "attempts": 0, "next_attempt": now, "created": now, "updated": now,
    }  # fmt: skip


# -- add


async def adding(database: Database, rounds: int) -> dict[str, float]:
    """Microseconds of one add and one bare insert, and the ratio of each round's."""
    await database.fill(0)
    sessions = async_sessionmaker(database.engine)
    table = database.outbox.metadata.tables[database.table]
    message = Message(database.topic, BODY, tags="paid", keys="order-17", properties={"customer": "17"})
    statement, row = insert(table), bare_row(database.topic)

    async def bare(session: Any) -> None:
        await session.execute(statement, row)

    async def add(session: Any) -> None:
        await database.outbox.add(session, message)

    found: dict[str, list[float]] = {"bare": [], "add": [], "add, sent at once": []}
    for number in range(rounds + 1):
        for name in found:
            if name.endswith("once"):
                await database.outbox.start()
            spent = 0.0
            for _ in range(10):
                async with sessions.begin() as session:
                    began = perf_counter()
                    for _ in range(100):
                        await (bare if name == "bare" else add)(session)
                    spent += perf_counter() - began
                if name.endswith("once"):
                    await asyncio.sleep(0.2)  # what was committed is on its way: not a part of adding
            if name.endswith("once"):
                await database.outbox.stop()
            if number:
                found[name].append(spent / 1000 * 1e6)
    middle = {name: statistics.median(times) for name, times in found.items()}
    for name in ("add", "add, sent at once"):
        middle[f"{name} / bare"] = statistics.median(a / b for a, b in zip(found[name], found["bare"], strict=True))
    return middle


# -- relay


async def without_sending(database: Database, *, ahead: bool) -> float:
    """Rows a second. ``ahead``: the next portion is read while the last one is written."""
    store = database.store()
    began, total = perf_counter(), 0
    writing: asyncio.Task[None] | None = None
    while True:
        rows, _ = await store.claim(PORTION, [], only=False, in_hand=())
        if writing is not None:
            await writing
        if not rows:
            return total / (perf_counter() - began)
        total += len(rows)
        sent = [Sent(row.id, "7F00000100002A9F0000000000000000", "broker-a:0", row.id) for row in rows]
        writing = asyncio.ensure_future(store.record(sent, [], []))
        if not ahead:
            await writing


async def relayed(database: Database, rows: int) -> tuple[float, float, float]:
    """Rows a second; MiB at the start, and at most."""
    process = psutil.Process()
    gc.collect()
    before = highest = process.memory_info().rss
    began = perf_counter()
    async with database.outbox:
        while (status := await database.outbox.status()).pending:
            highest = max(highest, process.memory_info().rss)
            await asyncio.sleep(0.25)
        seconds = perf_counter() - began
    assert status.sent == rows, status
    return rows / seconds, before / (1 << 20), highest / (1 << 20)


async def relaying(database: Database, rows: int, rounds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {
        "without sending": [],
        "relay": [],
        "relay / without sending": [],
        "MiB at start": [],
        "MiB at most": [],
    }
    for _ in range(rounds):
        rates = []
        for ahead in (False, True):
            await database.fill(rows)
            rates.append(await without_sending(database, ahead=ahead))
        await database.fill(rows)
        rate, before, highest = await relayed(database, rows)
        found["without sending"].append(max(rates))
        found["relay"].append(rate)
        found["relay / without sending"].append(rate / max(rates))
        found["MiB at start"].append(before)
        found["MiB at most"].append(highest)
    return {name: statistics.median(values) for name, values in found.items()} | {
        "rounds": [round(ratio, 2) for ratio in found["relay / without sending"]]
    }


# -- all of it


@asynccontextmanager
async def engine_at(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    if url.startswith("sqlite"):

        @event.listens_for(engine.sync_engine, "connect")
        def prepare(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.close()

    try:
        yield engine
    finally:
        await engine.dispose()


async def measure(url: str, namesrv: str, given: argparse.Namespace) -> None:
    topic = f"outbox-{uuid.uuid4().hex[:8]}"
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=8)
    async with engine_at(url) as engine, Producer("outbox", namesrv=namesrv, topics=[topic]) as producer:
        database = Database(engine, producer, topic)
        name = engine.dialect.name
        if given.only in (None, "add"):
            print_record({"database": name, "what": "add, us"} | await adding(database, given.rounds * 3))
        if given.only in (None, "relay"):
            print_record(
                {"database": name, "what": "relay, rows/s", "rows": given.rows}
                | await relaying(database, given.rows, given.rounds)
            )


def print_record(record: dict[str, Any]) -> None:
    print(
        json.dumps({name: round(value, 2) if isinstance(value, float) else value for name, value in record.items()}), flush=True
    )


async def main(given: argparse.Namespace) -> None:
    async with RealCluster(profile="stock") as cluster:
        if given.database in (None, "sqlite"):
            with tempfile.TemporaryDirectory() as place:
                await measure(f"sqlite+aiosqlite:///{place}/orders.db", cluster.namesrv, given)
        if given.database in (None, "postgresql"):
            with postgres() as url:
                await measure(url, cluster.namesrv, given)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("add", "relay"))
    parser.add_argument("--database", choices=("sqlite", "postgresql"))
    rmq_async.run(main(parser.parse_args()))
