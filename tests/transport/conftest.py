"""Every test here runs on asyncio and on uvloop, and must leave nothing: no task, no socket, no entry in any table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from rmq_async.transport import Connection, ConnectionPool, ConnectionState

from ..leftovers import sockets
from ..loops import BOTH, LoopFactory
from .support import until


def pytest_asyncio_loop_factories() -> Mapping[str, LoopFactory]:
    return BOTH


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every connection and pool made during the test."""
    things: list[Any] = []
    for kind in (Connection, ConnectionPool):
        monkeypatch.setattr(kind, "__init__", _noting(kind.__init__, things))
    return things


def _noting(init: Callable[..., None], things: list[Any]) -> Callable[..., None]:
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        things.append(self)

    return noted


@pytest.fixture(autouse=True)
async def loop_errors(made: list[Any]) -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the loop's exception handler; a test that expects something there takes it out."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield errors
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, 1.0)
    await until(lambda: sockets() <= before, 1.0)
    for thing in made:
        left = leftovers(thing)
        assert not left, f"{thing!r} keeps {left}"
    assert not errors


def leftovers(thing: Connection | ConnectionPool) -> list[str]:
    """Names of the tables and timers that should be empty and are not."""
    if isinstance(thing, Connection):
        names = ["_table", "_held", "_held_control"]
        if thing._deadlines._timer is not None:
            return ["_deadlines"]
        if not thing._writer.idle():
            return ["_writer"]
        if thing.state not in (ConnectionState.CLOSED, ConnectionState.CONNECTING):
            names.append("_state")
    else:
        names = ["open", "_all", "_connecting", "_idle_timer"]
    return [name for name in names if getattr(thing, name, None)]
