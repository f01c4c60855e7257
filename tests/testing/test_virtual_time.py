"""The loop of tests that wait: their own clock, and nothing of it after the test."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from types import ModuleType

import pytest

from rmq_async import Message, Producer, machine
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import SimulationError
from rmq_async.testing.simulation.standard_library import bound_names, replaceable_modules

from ..support.virtual_time import KnownNames

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server:
        yield server


async def test_virtual_time_passes_without_waiting(server: EmbeddedRocketMQ) -> None:
    cpu, began, wall = time.process_time(), asyncio.get_running_loop().time(), time.time()
    async with Producer("group", namesrv=server.namesrv) as producer:
        await producer.send(Message("topic", b"before"))
        await asyncio.sleep(3600)
        await producer.send(Message("topic", b"after"))
    first, second = server.messages("topic")
    assert 3600 <= (second.store_time_ms - first.store_time_ms) / 1000 < 3601
    assert 3600 <= asyncio.get_running_loop().time() - began < 3601
    assert 3600 <= time.time() - wall < 3601
    assert machine.monotonic() == asyncio.get_running_loop().time() == time.monotonic()
    assert time.process_time() - cpu < 30


async def test_virtual_time_runs_jobs_without_threads() -> None:
    assert await asyncio.to_thread(lambda: 7) == 7


async def test_virtual_time_refuses_what_leaves_it() -> None:
    with pytest.raises(SimulationError, match=r"socket\.socket\(\) was called in a simulation"):
        socket.socket()


async def test_virtual_time_moves_on_while_a_function_blocks() -> None:
    loop = asyncio.get_running_loop()
    began, ran = loop.time(), []
    for delay in (2.0, 1.0, 6.0):
        loop.call_later(delay, lambda delay=delay: ran.append((delay, round(loop.time() - began, 3))))
    time.sleep(5)
    assert loop.time() - began == 5
    assert not ran
    await asyncio.sleep(2)
    assert ran == [(1.0, 5.0), (2.0, 5.0), (6.0, 6.0)]


@pytest.mark.parametrize("run", [1, 2])
async def test_virtual_time_begins_anew_in_each_test(run: int) -> None:
    assert machine.monotonic() == 1000.0


def test_known_names_are_those_of_new_modules_and_of_old_ones_that_still_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    names, first, later = KnownNames(), ModuleType("first"), ModuleType("later")
    replaced = {id(machine.monotonic): "new"}
    first.clock = first.other = machine.monotonic  # type: ignore[attr-defined]
    later.clock = machine.monotonic  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "first", first)
    assert {(first, "clock", "new"), (first, "other", "new")} <= {*names(replaced)}
    monkeypatch.setattr(first, "other", len)
    monkeypatch.setitem(sys.modules, "later", later)
    found = [*names(replaced)]
    assert [each for each in found if each[0] in (first, later)] == [(first, "clock", "new"), (later, "clock", "new")]
    every = [*bound_names(replaceable_modules(sys.modules), replaced)]
    assert sorted((module.__name__, name) for module, name, _ in found) == sorted(
        (module.__name__, name) for module, name, _ in every
    )
