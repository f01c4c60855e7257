"""Short ways to use the parts of the client."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rmq_async.client import ClientInstance
from rmq_async.config import ClientConfig

from ..support.fakes import Peer
from ..support.waiting import until as until

GARBAGE = b'{"queueDatas":[{'


@asynccontextmanager
async def client(*name_servers: Peer, **options: Any) -> AsyncIterator[ClientInstance]:
    instance = await ClientInstance.acquire(config_of(*name_servers, **options))
    try:
        yield instance
    finally:
        await instance.release()


def config_of(*name_servers: Peer, **options: Any) -> ClientConfig:
    return ClientConfig(namesrv=[server.address for server in name_servers], **({"request_timeout": 1.0} | options))


def fork() -> int:
    """``os.fork()``; from 3.12 on Python warns of it where threads run, and the executor's may."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def ours() -> list[str]:
    """Names of the client's tasks."""
    return sorted(task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async"))
