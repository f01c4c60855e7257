"""Brokers in memory, whose time the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def server(clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    """Asks each 30 s about what is 6 s old."""
    async with EmbeddedRocketMQ(clock=clock) as running:
        yield running
