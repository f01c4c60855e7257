"""Every async test here must leave no task and no socket behind."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..support.leftovers import nothing_is_left
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories


@pytest.fixture
async def nothing_left() -> AsyncIterator[None]:
    async with nothing_is_left():
        yield
