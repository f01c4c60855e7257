"""Servers whose time the test moves, and a client that pops from broker-a."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..inside import START, WatchedClock
from .support import PopClient


@pytest.fixture
def clock() -> WatchedClock:
    return WatchedClock(START)


@pytest.fixture
async def broker(server: EmbeddedRocketMQ) -> AsyncIterator[PopClient]:
    async with PopClient(server.brokers["broker-a"]) as client:
        yield client
