"""Every test here runs on asyncio and on uvloop, or under virtual time, and must leave nothing: no task, no socket, no entry in any
table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from math import isfinite
from typing import Any

import pytest
import uvloop

from rmq_async.transport import Connection, ConnectionPool, ConnectionState
from rmq_async.transport.coalescer import WriteCoalescer
from rmq_async.transport.pending import Deadlines

from ..support import loops
from ..support.leftovers import made_of, sockets
from ..support.loops import LoopFactory
from .support import Sender, until


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    return loops.pytest_asyncio_loop_factories(item) if item.get_closest_marker("virtual_time") is not None else loops.BOTH


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every connection and pool made during the test, and what watches times and gathers frames for them."""
    return made_of((Connection, ConnectionPool, Deadlines, WriteCoalescer), monkeypatch)


@pytest.fixture(autouse=True)
async def loop_errors(made: list[Any]) -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the loop's exception handler; a test that expects something there takes it out."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield errors
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    await until(lambda: sockets() <= before)
    for thing in made:
        left = leftovers(thing)
        assert not left, f"{thing!r} keeps {left}"
    assert not errors


def leftovers(thing: Any) -> list[str]:
    """What should be empty, closed or stopped, and is not."""
    match thing:
        case Connection():
            left = {
                "requests": bool(thing.pending or thing.requests.in_flight),
                "frames": " 0 held" not in repr(thing),
                "state": thing.state not in (ConnectionState.CLOSED, ConnectionState.CONNECTING),
            }
        case Deadlines():
            left = {"timer": isfinite(thing.at)}
        case WriteCoalescer():
            left = {"gathered": not thing.idle()}
        case _:
            busy = repr(thing) != "<ConnectionPool 0 open, 0 connecting>" or thing.connections
            left = {"connections": bool(busy), "timer": thing._idle_timer is not None}
    return [name for name, found in left.items() if found]


@pytest.fixture
async def each_way_on_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without properties have a path of their own, for which the same holds: on uvloop the test takes that one."""
    monkeypatch.setattr(Sender, "plain", isinstance(asyncio.get_running_loop(), uvloop.Loop))
