"""Cancelling at every point: the call is cancelled after k steps of the loop, for each k until it would have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async.errors import ClientStateError, ConnectError, RocketMQError
from rmq_async.transport import ConnectionPool

from ..support.fakes import Peer, echo, silence
from ..support.leftovers import sockets
from .support import Sender, connect, free_port, ping, pool_of, spin, until

pytestmark = pytest.mark.interpreters


async def cancelled_after(steps: int, call: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the call was still under way after ``steps``; if so it has been cancelled and has ended."""
    task = asyncio.ensure_future(call())
    await spin(steps)
    if task.done():
        task.result()
        return False
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), f"cancelled after {steps} steps it ended otherwise"
    return True


async def test_cancelling_a_request_at_any_step_leaves_nothing() -> None:
    async with Peer(echo) as peer, connect(peer) as connection:
        steps = 0
        while await cancelled_after(steps, lambda: connection.request(ping(b"m"), 60)):
            assert connection.pending == 0
            steps += 1
            assert steps < 200
        assert steps > 2
        assert (await connection.request(ping(b"after"), 60)).body == b"after"
        assert connection.strays <= peer.received
        assert connection.pending == 0


@pytest.mark.virtual_time
async def test_cancelling_a_request_as_it_times_out_leaves_nothing() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        for delay in range(8):
            task = asyncio.ensure_future(connection.request(ping(), 0.02))
            asyncio.get_running_loop().call_later(0.016 + delay / 1000, task.cancel)
            await asyncio.wait([task])
            assert task.cancelled() or isinstance(task.exception(), TimeoutError)
            assert connection.pending == 0


async def test_cancelling_1000_sends_at_any_step_leaves_nothing() -> None:
    async with Peer(echo, keep=False) as peer, connect(peer) as connection:
        sender = Sender(connection, window=100)
        for steps in range(12):
            tasks = [asyncio.ensure_future(sender.send(b"m")) for _ in range(200)]
            await spin(steps)
            for task in tasks[:: 1 + steps % 3]:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() or task.result().code == 0 for task in tasks)
            assert connection.pending == 0
            assert connection.requests.in_flight == 0


async def test_cancelling_a_connect_at_any_step_leaves_nothing_and_stops_no_caller() -> None:
    steps, going = 0, True
    while going:
        async with Peer() as peer, pool_of() as pool:
            other = asyncio.ensure_future(pool.connect(peer.address, 60)) if steps % 2 else None
            going = await cancelled_after(steps, lambda pool=pool, peer=peer: pool.connect(peer.address, 60))
            if other is not None:
                assert (await other).is_open
            connection = await pool.connect(peer.address, 60)
            assert (await connection.request(ping(b"m"), 60)).body == b"m"
            assert len(peer.links) == 1, "the connect goes on for the next caller"
        steps += 1
        assert steps < 200
    assert steps > 2


async def test_cancelling_a_refused_connect_at_any_step_leaves_nothing() -> None:
    address = f"127.0.0.1:{free_port()}"
    steps, going = 0, True
    while going:
        async with pool_of() as pool:
            try:
                going = await cancelled_after(steps, lambda pool=pool: pool.connect(address, 60))
            except ConnectError:
                going = False
        steps += 1
        assert steps < 200
    assert steps > 2


async def close_after(steps: int, pool: ConnectionPool, address: str) -> bool:
    """Whether a connect was still under way when the pool was closed after ``steps``."""
    task = asyncio.ensure_future(pool.connect(address, 60))
    await spin(steps)
    done = task.done()
    await pool.aclose()
    await asyncio.wait([task])
    error = task.exception()
    assert isinstance(error, ClientStateError) if error is not None else not task.result().is_open
    return not done


async def test_closing_the_pool_at_any_step_of_a_connect_leaves_no_socket() -> None:
    steps, going = 0, True
    before = sockets()
    while going:
        async with Peer() as peer, pool_of() as pool:
            going = await close_after(steps, pool, peer.address)
            await until(lambda peer=peer: all(link.lost.done() for link in peer.links))
            listening = sockets() - before
            assert len(listening) == 1, "the peer's own"
        steps += 1
        assert steps < 200
    assert steps > 2


async def test_cancelling_aclose_at_any_step_leaves_nothing() -> None:
    for steps in range(12):
        async with Peer(silence) as peer, pool_of() as pool:
            connection = await pool.connect(peer.address, 60)
            request = asyncio.ensure_future(connection.request(ping(), 60))
            connecting = asyncio.ensure_future(pool.connect("127.0.0.1:1", 60))
            await spin(steps % 4)
            task = asyncio.ensure_future(pool.aclose(0.001 * steps))
            await spin(steps)
            task.cancel()
            await asyncio.wait([task])
            if steps:  # a task cancelled before its first step never ran
                await until(connection.closed.done)
            else:
                await pool.aclose()
            outcomes = await asyncio.gather(request, connecting, return_exceptions=True)
            assert all(isinstance(outcome, RocketMQError) for outcome in outcomes)
