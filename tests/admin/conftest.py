"""As for the client's tests: both loops, and nothing may be left."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async import Admin
from rmq_async.embedded import EmbeddedRocketMQ

from ..client.conftest import nothing_left, pytest_asyncio_loop_factories

__all__ = ["nothing_left", "pytest_asyncio_loop_factories"]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2) as started:
        yield started


@pytest.fixture
async def admin(server: EmbeddedRocketMQ) -> AsyncIterator[Admin]:
    async with Admin(namesrv=server.namesrv) as started:
        await started.create_topic("OrderTopic", queues=2)
        await started.create_group("billing")
        yield started
