"""What a pool waits for: back-offs of addresses that failed, connects that stay unanswered, connections that stay idle."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from rmq_async.errors import ConnectError, RequestTimeoutError, RocketMQError
from rmq_async.transport import CloseReason
from rmq_async.transport import pool as pool_module
from rmq_async.transport.pool import Backoff
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, echo
from ..support.virtual_time import BLACK_HOLE
from .support import ping, pool_of, spin, takes

pytestmark = pytest.mark.virtual_time

PORT = 10911
"""Nothing listens there unless a test does."""


def test_backoff_grows_to_one_second() -> None:
    backoff, now, waits = Backoff(), 1000.0, []
    for _ in range(8):
        backoff.failed(now)
        waits.append(backoff.remaining(now))
        now += 10
        assert backoff.remaining(now) == 0
    assert waits[0] == pytest.approx(0.05)
    assert waits == sorted(waits)
    assert max(waits) == pytest.approx(1.0)


async def test_addresses_that_failed_are_forgotten_when_there_are_many_and_they_are_not_recent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_module, "MAX_BACKOFFS", 8, raising=False)

    async def fail(count: int) -> int:
        async with pool_of() as pool:
            for number in range(count):
                with pytest.raises(ConnectError):
                    await pool.connect(f"..{number}:1", 5)
            return sum(pool.is_down(f"..{number}:1") for number in range(count))

    assert await fail(30) == 30
    monkeypatch.setattr(pool_module, "MAX_BACKOFF", 0.0)
    assert await fail(30) <= 8


async def test_connect_during_backoff_ends_by_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FIRST_BACKOFF", 1.0)
    address = f"127.0.0.1:{PORT}"
    async with pool_of() as pool:
        with pytest.raises(ConnectError):
            await pool.connect(address, 5)
        with takes(0.1), pytest.raises(RequestTimeoutError) as caught:
            await pool.connect(address, 0.1)
        assert not caught.value.maybe_stored
        assert caught.value.address == address


async def test_a_peer_that_comes_back_is_found_within_the_back_off() -> None:
    address = f"127.0.0.1:{PORT}"
    async with pool_of() as pool:
        for _ in range(3):
            with pytest.raises(ConnectError):
                await pool.connect(address, 5)
        async with Peer(port=PORT):
            connection = await asyncio.wait_for(pool.connect(address, 5), 1.0)
            await connection.request(ping(), 1)
            assert not pool.backing_off(address)
            connection.close(CloseReason.DEAD)
            assert not pool.backing_off(address), "it answered: the next failure is the first one again"


async def test_a_peer_that_accepts_and_drops_is_not_stormed() -> None:
    async with Peer(greet=lambda link: link.reset()) as peer, pool_of() as pool:
        started = monotonic()
        while monotonic() - started < 0.5:
            try:
                connection = await pool.connect(peer.address, 0.2)
                await connection.request(ping(), 0.2)
            except RocketMQError:
                pass
            await spin()
        assert 2 <= len(peer.links) <= 6, "50, 100, 200, 400 ms between them"


def away(link: Link, request: RemotingCommand) -> None:
    link.reply(request, code=1500)


async def test_a_server_that_sends_its_clients_away_is_left_alone_from_the_second_time_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Peer(away) as peer, Peer(away) as other, pool_of() as pool:

        async def sent_away(by: Peer) -> bool:
            await (await pool.connect(by.address, 5)).request(ping(), 5)
            assert pool.get(by.address) is None
            return pool.backing_off(by.address)

        assert [await sent_away(peer), await sent_away(other)] == [False, False]
        assert await sent_away(peer)
        text = f"no connection attempt to {peer.address} for up to 1 s after a failure: the server is shutting down (GO_AWAY)"
        assert str(pool.refusal(peer.address)) == text
        monkeypatch.setattr(pool_module, "REPEATED_GO_AWAY", 0.0)
        assert not await sent_away(peer), "it has been a while, and the next connect may find another server"
        assert set(pool._sent_away) == {peer.address}, "only what is recent is remembered"  # noqa: SLF001


async def test_a_black_hole_ends_in_time() -> None:
    async with pool_of() as pool:
        with takes(0.15), pytest.raises(RequestTimeoutError) as caught:
            await pool.connect(BLACK_HOLE, 0.15)
        assert not caught.value.maybe_stored
        assert "1 connecting" in repr(pool)
    assert "0 open, 0 connecting" in repr(pool)


async def test_the_connect_timeout_ends_a_connect_for_callers_with_more_time() -> None:
    async with pool_of(connect_timeout=0.1) as pool:
        with takes(0.1), pytest.raises(ConnectError, match=r"0\.1 s"):
            await pool.connect(BLACK_HOLE, 5)
        assert pool.backing_off(BLACK_HOLE)


async def test_callers_of_one_connect_have_their_own_deadlines() -> None:
    async with pool_of(connect_timeout=0.3) as pool:

        async def call(timeout: float) -> None:
            with takes(min(timeout, 0.3)), pytest.raises(RocketMQError):
                await pool.connect(BLACK_HOLE, timeout)

        await asyncio.gather(*[call(timeout) for timeout in (0.05, 0.1, 0.2, 5)])


async def test_idle_connections_are_closed_and_used_ones_are_not() -> None:
    requests: list[tuple[Link, RemotingCommand]] = []
    async with Peer() as idle, Peer() as used, Peer() as waiting, pool_of(idle_timeout=0.2) as pool:
        waiting.answer = lambda link, request: requests.append((link, request))
        started = monotonic()
        connection = await pool.connect(idle.address, 5)
        busy = await pool.connect(used.address, 5)
        asking = await pool.connect(waiting.address, 5)
        answer = asyncio.ensure_future(asking.request(ping(b"m"), 5, long_poll=True))
        while connection.is_open:
            await busy.request(ping(), 1)
            await asyncio.sleep(0.01)
            assert monotonic() - started < 2
        assert connection.close_reason is CloseReason.IDLE
        assert monotonic() - started >= 0.19
        assert pool.get(idle.address) is None
        assert busy.is_open
        assert asking.is_open
        echo(*requests[0])
        assert (await answer).body == b"m"
        again = await pool.connect(idle.address, 5)
        assert again.is_open
