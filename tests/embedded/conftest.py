"""Every test must leave no task and no socket behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock

from ..support.fakes import RawClient
from ..support.leftovers import nothing_is_left
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .lite_client import LiteClient


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    async with nothing_is_left():
        yield


@pytest.fixture
def clock() -> ManualClock | None:
    """The clock of ``server``; None for real time. A module that moves the time has its own."""
    return None


@pytest.fixture
async def server(nothing_left: None, clock: ManualClock | None) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(clock=clock) as server:
        yield server


@pytest.fixture
async def unfiltering(nothing_left: None) -> AsyncIterator[RawClient]:
    """Connected to a broker without SQL92 filters, as a stock one is."""
    async with EmbeddedRocketMQ(property_filter=False) as server, RawClient(server.brokers["broker-a"]) as client:
        yield client


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


@pytest.fixture
async def lite(server: EmbeddedRocketMQ) -> AsyncIterator[LiteClient]:
    """A client of lite topics, connected to broker-a."""
    async with LiteClient(server.brokers["broker-a"]) as client:
        yield client
