"""Every test must leave no task and no socket behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..leftovers import nothing_is_left
from ..loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .raw import RawClient


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    async with nothing_is_left():
        yield


@pytest.fixture
async def server(nothing_left: None) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server:
        yield server


@pytest.fixture
async def broker(server: EmbeddedRocketMQ) -> AsyncIterator[RawClient]:
    """Connected to broker-a."""
    async with RawClient(server.brokers["broker-a"]) as client:
        yield client


@pytest.fixture
async def names(server: EmbeddedRocketMQ) -> AsyncIterator[RawClient]:
    """Connected to the name server."""
    async with RawClient(server.namesrv) as client:
        yield client
