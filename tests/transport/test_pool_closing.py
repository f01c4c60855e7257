"""The end of a pool: what it waits for, and what it ends."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.errors import ClientStateError, ConnectionLostError
from rmq_async.transport import CloseReason
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, echo, late, silence
from ..support.virtual_time import BLACK_HOLE
from .support import Sender, ping, pool_of, spin, takes

pytestmark = pytest.mark.virtual_time


async def test_aclose_lets_answers_come_until_its_time_is_over() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        if request.body == b"soon":
            late(0.05, echo)(link, request)

    async with Peer(answer) as peer, pool_of() as pool:
        connection = await pool.connect(peer.address, 5)
        soon, never = (asyncio.ensure_future(connection.request(ping(body), 5)) for body in (b"soon", b"never"))
        await spin(2)
        with takes(0.2):
            await pool.aclose(0.2)
        assert (await soon).body == b"soon"
        with pytest.raises(ConnectionLostError, match=CloseReason.LOCAL.value):
            await never


async def test_aclose_does_not_wait_longer_than_needed() -> None:
    async with Peer(late(0.05, echo)) as peer, pool_of() as pool:
        connection = await pool.connect(peer.address, 5)
        tasks = [asyncio.ensure_future(connection.request(ping(), 5)) for _ in range(100)]
        await spin(2)
        with takes(0.05):
            await pool.aclose(10)
        await asyncio.gather(*tasks)


async def test_a_closed_pool_connects_no_more() -> None:
    async with Peer() as peer, pool_of() as pool:
        await pool.connect(peer.address, 5)
        await pool.aclose()
        await pool.aclose()
        assert pool.connections == ()
        with pytest.raises(ClientStateError):
            await pool.connect(peer.address, 5)


async def test_aclose_ends_connects_under_way() -> None:
    async with pool_of() as pool:
        callers = [asyncio.ensure_future(pool.connect(BLACK_HOLE, 5)) for _ in range(3)]
        await asyncio.sleep(0.02)
        with takes(0.0):
            await pool.aclose(5)
        errors = await asyncio.gather(*callers, return_exceptions=True)
        assert all(isinstance(error, ClientStateError) for error in errors)


async def test_a_cancelled_aclose_still_closes_and_disturbs_no_other() -> None:
    async with Peer(silence) as peer, pool_of() as pool:
        connection = await pool.connect(peer.address, 5)
        pending = asyncio.ensure_future(connection.request(ping(), 5))
        await spin(2)
        first = asyncio.ensure_future(pool.aclose(5))
        await asyncio.sleep(0.02)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert not connection.is_open
        await asyncio.wait([pending])
        assert isinstance(pending.exception(), ConnectionLostError)


async def test_of_two_acloses_one_may_be_cancelled() -> None:
    for steps in range(6):
        async with Peer(silence) as peer, pool_of() as pool:
            await pool.connect(peer.address, 5)
            first, second = (asyncio.ensure_future(pool.aclose()) for _ in range(2))
            await spin(steps)
            first.cancel()
            await second
            await asyncio.wait([first])


async def test_closing_a_pool_with_10_000_in_flight() -> None:
    async with Peer(silence, keep=False) as peer, pool_of() as pool:
        sender = Sender(await pool.connect(peer.address, 5))
        futures = [sender.submit(b"m") for _ in range(10_000)]
        with takes(0.05):
            await pool.aclose(0.05)
        errors = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(error, ConnectionLostError) for error in errors)
