"""Outboxes on both databases: a SQLite file, and PostgreSQL, unless the test says which; nothing may be left behind."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from ..leftovers import nothing_is_left
from ..loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from ..postgres import postgres
from .support import Sessions, prepare_sqlite

_numbers = itertools.count()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that the test has for itself (SQLite) or shares with others, under a table of its own (PostgreSQL)."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/service.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def table() -> str:
    return f"outbox_{next(_numbers)}"


@pytest.fixture
async def clean() -> AsyncIterator[None]:
    async with nothing_is_left():
        yield


@pytest.fixture
async def engine(url: str, clean: None) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url, poolclass=NullPool if url.startswith("sqlite") else None)
    if url.startswith("sqlite"):
        event.listen(made.sync_engine, "connect", prepare_sqlite)
    try:
        yield made
    finally:
        await made.dispose()


@pytest.fixture
def sessions(engine: AsyncEngine) -> Sessions:
    return async_sessionmaker(engine)


@pytest.fixture
async def server(clean: None) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2) as started:
        yield started


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> AsyncIterator[Producer]:
    async with Producer("orders", namesrv=server.namesrv) as started:
        yield started


@pytest.fixture
def make(engine: AsyncEngine, producer: Producer, table: str) -> Callable[..., Outbox]:
    """Makes outboxes on the test's table, for tests that need settings of their own."""

    def made(**settings: Any) -> Outbox:
        return Outbox(engine, producer, table=table, **{"poll_interval": 0.02} | settings)

    return made


@pytest.fixture
async def outbox(engine: AsyncEngine, producer: Producer, table: str) -> AsyncIterator[Outbox]:
    """It runs."""
    made = Outbox(engine, producer, table=table, poll_interval=0.05)
    await made.create_table()
    async with made:
        yield made
