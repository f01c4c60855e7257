"""Every test here must leave nothing: no task, no socket, no credit, no table entry."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator
from math import inf
from pathlib import Path
from typing import Any

import psutil
import pytest

from rmq_async import machine
from rmq_async._asyncio import SingleFlight, StopScope
from rmq_async.producer.admission.credits import Credits
from rmq_async.producer.admission.ordering import Line
from rmq_async.producer.batching.batcher import Batcher
from rmq_async.producer.calls.recovery import Recovery
from rmq_async.producer.core import ProducerCore
from rmq_async.producer.oneway.pacing import OnewayPacing
from rmq_async.transport import Connection, ConnectionPool
from rmq_async.transport.pending import Deadlines

from ..support import held_ports
from ..support.fakes import Cluster
from ..support.instances import registered
from ..support.leftovers import made_of
from ..support.loops import pytest_asyncio_loop_factories as pytest_asyncio_loop_factories
from .support import gathers_nothing, until

PROTOCOL_TESTS = Path(__file__).parents[1] / "protocol"
sys.path.append(str(PROTOCOL_TESTS))  # for the runner of the golden vectors
pytest.register_assert_rewrite("vectors")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What became of the vectors, unless the directory they belong to prints it."""
    import vectors

    plugins = terminalreporter.config.pluginmanager.get_plugins()
    if not vectors.TALLIES or any(getattr(each, "__file__", None) == str(PROTOCOL_TESTS / "conftest.py") for each in plugins):
        return
    terminalreporter.section("golden vectors")
    for name, tally in vectors.TALLIES.items():
        terminalreporter.line(f"{name}: {tally}")


def sockets() -> set[int]:
    """Descriptors of this process's TCP sockets. psutil would read the whole machine's list, 50 ms after a busy test."""
    if machine.executor is not None:  # a simulation, whose sockets are not the system's
        return set()
    directory = Path("/proc/self/fd")
    if not directory.exists():
        found = {connection.fd for connection in psutil.Process().net_connections(kind="tcp")}
    else:
        found = {int(name) for name in os.listdir(directory) if _is_tcp(directory / name)}
    return found - held_ports.descriptors()


def threads() -> list[threading.Thread]:
    """The library's threads that run, but for the one that watches a simulation."""
    return [each for each in threading.enumerate() if each.name.startswith("rmq_async") and "simulation" not in each.name]


def _is_tcp(path: Path) -> bool:
    try:
        if not os.readlink(path).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(int(path.name))) as twin:
            return twin.family in (socket.AF_INET, socket.AF_INET6)
    except OSError:  # the descriptor of the listing itself
        return False


TRACKED = (
    Connection,
    Deadlines,
    ConnectionPool,
    Credits,
    ProducerCore,
    Batcher,
    Line,
    OnewayPacing,
    Recovery,
    SingleFlight,
    StopScope,
)


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything made during the test that holds a table."""
    return made_of(TRACKED, monkeypatch)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("loop_errors")


@pytest.fixture
async def loop_errors(tracked: list[Any]) -> AsyncIterator[list[dict[str, Any]]]:
    """What reached the loop's exception handler; a test that expects something there takes it out."""
    errors: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    before = sockets()
    yield errors
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    await until(lambda: sockets() <= before)
    await until(lambda: not threads())
    left = [(thing, found) for thing in tracked if (found := leftovers(thing))]
    assert not left
    assert not registered()
    tracked.clear()
    gc.collect(1)  # a future that was dropped with its error inside speaks up now
    assert not errors


def leftovers(thing: Any) -> dict[str, Any]:
    """What should be empty or zero at the end, and is not."""
    match thing:
        case Connection():
            held = " 0 held" not in repr(thing)
            found = {"pending": thing.pending, "in flight": thing.requests.in_flight, "held": held, "open": thing.is_open}
        case Deadlines():
            found = {"looks again": thing.at != -inf}  # else it has been stopped
        case ConnectionPool():
            idle = repr(thing) == "<ConnectionPool 0 open, 0 connecting>"
            found = {"busy": not idle, "connections": thing.connections, "timer": thing._idle_timer}
        case Credits():
            found = {"taken": thing.taken, "bytes": thing.taken_bytes, "waiting": thing.waiting}
        case ProducerCore():
            found = {"calls": thing.dispatch.calls}
        case Batcher():
            found = {"gathered": not gathers_nothing(thing), "timer": thing._timer}
        case Line():
            found = {"places": thing.places}
        case Recovery():
            found = {"calls": len(thing), "addresses": not repr(thing).startswith("<Recovery of [],")}
        case OnewayPacing():
            found = {"open": thing.open}
        case SingleFlight() | StopScope():
            found = {"waiting": len(thing)}
        case _:
            raise AssertionError(f"{type(thing).__name__} is tracked, and what it may leave is not checked: {thing!r}")
    return {name: value for name, value in found.items() if value}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """One scripted broker."""
    async with Cluster(1) as servers:
        yield servers


@pytest.fixture
async def pair() -> AsyncIterator[Cluster]:
    """Two scripted brokers."""
    async with Cluster(2) as servers:
        yield servers


@pytest.fixture
async def trio() -> AsyncIterator[Cluster]:
    async with Cluster(3) as servers:
        yield servers
