"""The outbox against a real broker and real databases: processes killed, relays side by side, a broker that stays away."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker

from rmq_async import Admin, Message, Producer, run
from rmq_async.outbox import Outbox, StuckMessage
from rmq_async.testing.cluster import RealCluster

from ..support.postgres import postgres
from .accounting import read_all
from .outbox_kills import Service, count, drained, prepare, run_with_kills
from .outbox_service import Settings, engine_for

ORDERS = 1_000
"""benchmarks/outbox_faults.py takes 20,000, for docs/outbox.md."""
PAUSE = 0.03
"""Seconds between two orders of a session: eight for all of them, in which each process and the broker is killed."""


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


async def settings_for(cluster: RealCluster, url: str, **more: Any) -> Settings:
    topic = f"outbox-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=4, broker=cluster.brokers[0].name)
    return Settings(url, cluster.namesrv, topic, topic.replace("-", "_"), **more)


def url_of(database: str, place: Path, request: pytest.FixtureRequest) -> str:
    found: str = (
        request.getfixturevalue("postgres_url") if database == "postgresql" else f"sqlite+aiosqlite:///{place}/orders.db"
    )
    return found


@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.deep), "postgresql"])
def test_nothing_committed_is_lost_while_writer_relay_and_broker_are_killed(
    database: str, lone_broker: RealCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    url = url_of(database, tmp_path, request)

    async def main() -> None:
        settings = await settings_for(
            lone_broker, url, orders=ORDERS, writers=2 if database == "sqlite" else 4, pause=PAUSE, seed=seed
        )
        found = await run_with_kills(lone_broker, settings, pause=(0.2, 0.7), most=4)
        print(found)
        assert found.committed == ORDERS
        assert found.faultless, found
        assert min(found.kills.values()) >= 1
        assert len(found.kills) == 3, "this seed has not killed each of them"

    run(main())


def test_two_relays_and_two_writers_on_one_table_send_no_row_twice(lone_broker: RealCluster, postgres_url: str) -> None:
    async def main() -> None:
        shared: dict[str, Any] = {"orders": 500, "writers": 2, "processes": 2}
        settings = await settings_for(lone_broker, postgres_url, lease=30.0, **shared)
        await prepare(settings)
        writers = []
        for mine in (0, 1):  # one sends its own messages, the other leaves all of them to the relays
            part = Settings(**{name: getattr(settings, name) for name in settings.__struct_fields__})
            part.mine, part.relayed = mine, not mine
            writers.append(Service("writer", part))
        relays = [Service("relay", settings), Service("relay", settings)]
        try:
            for service in (*writers, *relays):
                await service.start()
            assert [await asyncio.wait_for(writer.process.wait(), 60) for writer in writers] == [0, 0]
            await drained(settings)
            assert [await relay.end() for relay in relays] == [0, 0]
        finally:
            for service in (*writers, *relays):
                await service.kill()
        found = await count(settings)
        assert (found.committed, found.read, found.lost, found.duplicated) == (500, 500, 0, 0), found
        assert found.faultless, found

    run(main())


def test_while_the_broker_is_away_adding_goes_on_and_afterwards_everything_is_sent(
    lone_broker: RealCluster, tmp_path: Path
) -> None:
    """Five seconds here; ``benchmarks/outbox_faults.py --away 60`` takes a minute."""

    async def main() -> None:
        settings = await settings_for(lone_broker, f"sqlite+aiosqlite:///{tmp_path}/orders.db", orders=0, writers=1)
        reported: list[StuckMessage] = []
        engine = engine_for(settings.url)
        sessions = async_sessionmaker(engine)
        async with Producer("service", namesrv=settings.namesrv) as producer:
            outbox = Outbox(engine, producer, table=settings.table, stuck_after=2.0, on_stuck=reported.append)
            await outbox.create_table()
            async with outbox:
                broker = lone_broker.brokers[0]
                await broker.kill()
                began, slowest, added = monotonic(), 0.0, 0
                while monotonic() - began < 5.0:
                    before = monotonic()
                    async with sessions.begin() as session:
                        await outbox.add(session, Message(settings.topic, b"order %d" % added, keys=f"order-{added}"))
                    slowest, added = max(slowest, monotonic() - before), added + 1
                    await asyncio.sleep(0.05)
                away = await outbox.status()
                assert (away.pending, away.sent) == (added, 0)
                await broker.start()
                await drained(settings)
        await engine.dispose()
        found = {message.body for message in await read_all(settings.namesrv, settings.topic)}
        assert found == {b"order %d" % number for number in range(added)}
        assert slowest < 2.0
        assert 1 <= len(reported) == len({message.id for message in reported}) <= added
        assert all(message.age >= 2.0 and message.topic == settings.topic for message in reported)

    run(main())
