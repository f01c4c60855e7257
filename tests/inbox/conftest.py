"""Inboxes on both databases; nothing may be left behind.

Databases work in threads and in a process: these tests wait in real time.
"""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async.inbox import Inbox

from ..support.databases import clean as clean
from ..support.databases import engine as engine
from ..support.databases import postgres_url as postgres_url
from ..support.databases import sessions as sessions
from ..support.databases import url as url
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories

_numbers = itertools.count()


@pytest.fixture
def table() -> str:
    return f"inbox_{next(_numbers)}"


@pytest.fixture
async def inbox(engine: AsyncEngine, table: str) -> Inbox:
    made = Inbox(group="billing", table=table)
    await made.create_table(engine)
    return made
