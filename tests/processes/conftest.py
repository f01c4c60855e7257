"""Several clusters and several processes. Every async test here must leave no task and no socket behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..support.instances import registered
from ..support.leftovers import nothing_is_left
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture(autouse=True)
async def nothing_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    before = registered()  # what Spark keeps for as long as its process lives, where it ran in this one
    async with nothing_is_left():
        yield
    assert registered() == before
