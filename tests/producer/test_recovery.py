"""Calls that wait for a broker together, once it is back: when it is the turn of each, and what ends one without a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmq_async import Producer, SendError
from rmq_async.errors import ConnectError, RequestTimeoutError
from rmq_async.producer.calls import recovery
from rmq_async.producer.calls.recovery import FEWEST
from rmq_async.transport import Connection, ConnectionPool
from rmq_async.transport.send_window import FIRST_SIZE

from ..support.fakes import Cluster, late, silence
from .support import core_of, message, messages, outcomes, producer, until

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def calls_behind(sender: Producer, cluster: Cluster, count: int) -> AsyncIterator[list[asyncio.Future[Any]]]:
    """``count`` calls that wait for the only broker, which is away."""
    await sender.send(message())
    await cluster.a.stop()
    calls = [asyncio.ensure_future(sender.send(item)) for item in messages(count)]
    try:
        await until(lambda: len(core_of(sender).recovery) == count)
        yield calls
    finally:
        for call in calls:
            call.cancel()
        await outcomes(*calls)


async def test_waiting_calls_go_on_beside_others(cluster: Cluster) -> None:
    """Others keep the window of a broker that is back full: those who wait get a share."""
    async with producer(cluster, timeout=60.0) as sender, calls_behind(sender, cluster, FEWEST + 8) as waiting:
        over = False

        async def other() -> None:
            while not over:
                await sender.send(message())

        cluster.a.answer = late(0.02)
        await cluster.a.start()
        others = [asyncio.ensure_future(other()) for _ in range(3 * FIRST_SIZE)]
        try:
            await until(lambda: all(call.done() for call in waiting), 10.0)
        finally:
            over = True
            await asyncio.gather(*others)
        await asyncio.gather(*waiting)


async def test_waiting_call_without_turn_says_so(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is connected to, and silent: the calls that go first are not answered, so that the next one gets no turn."""
    monkeypatch.setattr(recovery, "FEWEST", 0)
    first = 2 * FIRST_SIZE  # of which half wait in the connection
    async with producer(cluster, timeout=60.0, stop_timeout=0.0) as sender, calls_behind(sender, cluster, first):
        last = asyncio.ensure_future(sender.send(message(b"last"), timeout=0.8))
        await until(lambda: len(core_of(sender).recovery) == first + 1)
        cluster.a.answer = silence
        cluster.a.sends.clear()
        await cluster.a.start()
        await until(lambda: len(cluster.a.sends) == FIRST_SIZE)
        with pytest.raises(SendError, match=f"{cluster.a.address} was reconnected, but the calls that waited for it") as caught:
            await last
    assert not caught.value.maybe_stored
    assert [type(attempt.error) for attempt in caught.value.attempts] == [ConnectError, ConnectError]
    assert b"last" not in cluster.a.bodies


async def test_released_call_that_the_window_holds_until_its_deadline_says_so(cluster: Cluster) -> None:
    async with producer(cluster, timeout=60.0, stop_timeout=0.0) as sender, calls_behind(sender, cluster, FIRST_SIZE):
        last = asyncio.ensure_future(sender.send(message(b"last"), timeout=0.8))
        await until(lambda: len(core_of(sender).recovery) == FIRST_SIZE + 1)
        cluster.a.answer = silence
        cluster.a.sends.clear()
        await cluster.a.start()
        with pytest.raises(SendError, match="64 earlier sends are unanswered and the broker takes 64 at a time") as caught:
            await last
    assert not caught.value.maybe_stored
    assert [type(attempt.error) for attempt in caught.value.attempts] == [ConnectError, RequestTimeoutError]
    assert len(cluster.a.sends) == FIRST_SIZE


async def test_waiting_calls_survive_unexpected_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, loop_errors: list[dict[str, Any]]
) -> None:
    """Connecting fails once by something that is no failure of a connection: it is reported, and connecting goes on."""
    connect = ConnectionPool.connect
    failed = False

    async def failing_once(pool: ConnectionPool, address: str, *args: Any) -> Connection:
        nonlocal failed
        if address == cluster.a.address and not failed:
            failed = True
            raise RuntimeError("can't start new thread")
        return await connect(pool, address, *args)

    async with producer(cluster, timeout=60.0) as sender, calls_behind(sender, cluster, 2) as waiting:
        monkeypatch.setattr(ConnectionPool, "connect", failing_once)
        await until(lambda: failed)
        await cluster.a.start()
        await until(lambda: all(call.done() for call in waiting), 10.0)
        await asyncio.gather(*waiting)
    assert [str(each.pop("exception")) for each in loop_errors] == ["can't start new thread"]
    assert cluster.a.address in loop_errors.pop()["message"]
