"""Outboxes on both databases; nothing may be left behind.

Databases work in threads and in a process: these tests wait in real time.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from ..support.databases import clean as clean
from ..support.databases import engine as engine
from ..support.databases import postgres_url as postgres_url
from ..support.databases import sessions as sessions
from ..support.databases import url as url
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .support import Looks

_numbers = itertools.count()


@pytest.fixture
def table() -> str:
    return f"outbox_{next(_numbers)}"


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Of relays for due rows."""
    return Looks(monkeypatch, "claim")


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
