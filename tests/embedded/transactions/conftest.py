"""Brokers whose time the test moves, and a producer that they can ask."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ...support.fakes import RawClient
from ..inside import START, WatchedClock
from .support import beat


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock(START)


@pytest.fixture
async def server(nothing_left: None, clock: WatchedClock) -> AsyncIterator[EmbeddedRocketMQ]:
    """Asks each 30 s about what is 6 s old, three times."""
    async with EmbeddedRocketMQ(clock=clock, brokers=2, transaction_check_max=3) as server:
        yield server


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> AsyncIterator[RawClient]:
    """Of group "PG" on broker-a, with a heartbeat."""
    async with RawClient(server.brokers["broker-a"]) as client:
        await beat(client, "p1")
        yield client
