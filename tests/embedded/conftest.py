"""Every test must leave no task and no socket behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import stat
from collections.abc import AsyncIterator

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .raw import RawClient


def sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is gone already
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.add(int(name))
    return found


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield
    for _ in range(100):
        if asyncio.all_tasks() == {asyncio.current_task()} and sockets() <= before:
            break
        await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert sockets() <= before
    gc.collect(1)
    assert not errors


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
