"""Every test here must leave nothing: no task, no socket, no shared instance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ..support.instances import registered
from ..support.leftovers import sockets
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .support import until


@pytest.fixture(autouse=True)
async def nothing_left(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the loop's exception handler; a test that expects something there takes it out."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield errors
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, 1.0)
    await until(lambda: sockets() <= before, 1.0)
    assert not registered()
    assert not errors
