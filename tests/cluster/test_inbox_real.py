"""Inbox, effect and outbox in one transaction, on a real broker, while consumers, broker and database are killed."""

from __future__ import annotations

import random
import uuid
from pathlib import Path

import pytest

from rmq_async import Admin, run
from rmq_async.testing.cluster import RealCluster

from ..support.postgres import PostgreSQL, postgres_server
from .inbox_kills import run_with_kills
from .inbox_service import Settings

ORDERS = 400
"""benchmarks/inbox_faults.py takes 20,000, for docs/inbox.md."""


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.deep), "postgresql"])
def test_each_order_is_paid_once_while_consumers_broker_and_database_are_killed(
    database: str, lone_broker: RealCluster, tmp_path: Path
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")

    async def main(url: str, server: PostgreSQL | None) -> None:
        name = f"inbox-{uuid.uuid4().hex[:12]}"
        async with Admin(namesrv=lone_broker.namesrv) as admin:
            for topic in (name, f"{name}-receipts"):
                await admin.create_topic(topic, queues=4, broker=lone_broker.brokers[0].name)
        settings = Settings(url, lone_broker.namesrv, name, f"{name}-receipts", name, ORDERS, seed)
        found = await run_with_kills(lone_broker, settings, server, pause=(0.2, 0.6), most=4)
        print(found)
        assert found.faultless, found
        assert found.copies >= 1
        assert len(found.kills) == (2 if server is None else 3), "this seed has not killed each of them"

    if database == "sqlite":
        run(main(f"sqlite+aiosqlite:///{tmp_path}/orders.db", None))
    else:
        with postgres_server() as server:
            run(main(server.url, server))
