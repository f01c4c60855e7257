"""NameServers: any will do, the one that answers is kept, and an error shows what each of them did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from rmq_async.broker_answers import broker_error
from rmq_async.client.name_servers import NameServers, NoUsableAnswerError
from rmq_async.config import ClientConfig
from rmq_async.errors import NameServerError, RequestTimeoutError
from rmq_async.transport import ConnectionPool
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, echo, refuse, reset, silence
from .support import until

ASK = RemotingCommand(code=106)


def new_pool() -> ConnectionPool:
    return ConnectionPool(ClientConfig(namesrv="127.0.0.1:1"))


@asynccontextmanager
async def name_servers(*peers: Peer, pool: ConnectionPool | None = None) -> AsyncIterator[NameServers]:
    """Asked in the order given, so that a test knows who is first."""
    pool, addresses = pool or new_pool(), tuple(peer.address for peer in peers)
    servers = NameServers(pool, addresses)
    while servers.addresses != addresses:  # each begins with another one
        servers = NameServers(pool, addresses)
    try:
        yield servers
    finally:
        await pool.aclose()


async def test_without_addresses_there_is_nothing_to_start() -> None:
    pool = new_pool()
    with pytest.raises(NameServerError, match="NAMESRV_ADDR"):
        NameServers(pool, [])
    await pool.aclose()


async def test_every_client_starts_with_another_server() -> None:
    pool = new_pool()
    firsts = {NameServers(pool, ["a:1", "b:2", "c:3"]).addresses[0] for _ in range(200)}
    assert firsts == {"a:1", "b:2", "c:3"}
    await pool.aclose()


async def test_the_one_that_answered_is_kept() -> None:
    async with Peer() as first, Peer() as second, name_servers(first, second) as servers:
        for _ in range(5):
            response, address = await servers.request(ASK, 1.0)
            assert (response.code, address) == (0, first.address)
        assert second.received == 0


@pytest.mark.virtual_time
async def test_a_dead_one_is_replaced_inside_the_call_and_may_come_back() -> None:
    async with Peer() as first, Peer() as second, name_servers(first, second) as servers:
        await servers.request(ASK, 1.0)
        await first.stop()
        for _ in range(3):
            assert (await servers.request(ASK, 1.0))[1] == second.address
        assert second.received == 3
        await first.start()
        await second.stop()
        assert (await servers.request(ASK, 2.0))[1] == first.address


@pytest.mark.virtual_time
async def test_a_silent_one_may_use_its_share_of_the_time_only() -> None:
    async with Peer(silence) as first, Peer() as second, name_servers(first, second) as servers:
        start = monotonic()
        assert (await servers.request(ASK, 2.0))[1] == second.address
        assert monotonic() - start == pytest.approx(1.0, abs=0.01)
        start = monotonic()
        await servers.request(ASK, 0.6)
        assert monotonic() - start < 0.01


@pytest.mark.virtual_time
async def test_a_connection_that_breaks_under_the_request_is_tried_again() -> None:
    def once(link: Link, request: RemotingCommand) -> None:
        if len(peer.links) == 1:
            link.close()
        else:
            echo(link, request)

    async with Peer(once) as peer, name_servers(peer) as servers:
        assert (await servers.request(ASK, 1.0))[1] == peer.address
        assert len(peer.links) == 2


@pytest.mark.virtual_time
async def test_one_that_always_hangs_up_is_tried_twice() -> None:
    async with Peer(reset) as peer, name_servers(peer) as servers:
        with pytest.raises(NameServerError, match="connection lost"):
            await servers.request(ASK, 1.0)
        assert len(peer.links) == 2


@pytest.mark.virtual_time
async def test_the_error_shows_what_each_of_them_did() -> None:
    refusing = Peer(port=9876)
    async with Peer(silence) as silent, name_servers(refusing, silent) as servers:
        start = monotonic()
        with pytest.raises(NameServerError) as caught:
            await servers.request(ASK, 0.3)
        assert monotonic() - start == pytest.approx(0.3, abs=0.01)
    text = str(caught.value)
    assert f"{refusing.address}: cannot connect" in text
    assert f"{silent.address}: no response" in text
    assert not isinstance(caught.value, NoUsableAnswerError)
    assert caught.value.code == 10004


async def test_an_unusable_answer_makes_the_next_one_be_asked() -> None:
    def read(response: RemotingCommand, address: str) -> bytes:
        if response.code:
            raise broker_error(response.code, response.remark, address=address)
        return response.body

    async with Peer(refuse(1, "name server not ready")) as first, Peer(echo) as second, name_servers(first, second) as servers:
        assert await servers.ask(RemotingCommand(code=105, body=b"x"), 1.0, read) == (b"x", second.address)
        assert (await servers.ask(RemotingCommand(code=105, body=b"y"), 1.0, read))[1] == second.address
        assert first.received == 1
        second.answer = refuse(1, "name server not ready")
        with pytest.raises(NoUsableAnswerError, match=r"it responded: 1 SYSTEM_ERROR: name server not ready") as caught:
            await servers.ask(ASK, 1.0, read)
        assert str(caught.value).count("not ready") == 2


@pytest.mark.virtual_time
async def test_all_are_asked_where_all_must_know() -> None:
    async with Peer() as first, Peer() as second, name_servers(first, second) as servers:
        answers = await servers.each(ASK, 1.0)
        assert answers.keys() == {first.address, second.address}
        second.answer = silence
        with pytest.raises(NameServerError) as caught:
            await servers.each(ASK, 0.4)
    text = str(caught.value)
    assert text.startswith("1 of 2 name servers did not respond, but all must respond: ")
    assert f"{second.address}: no response" in text
    assert first.address not in text


async def test_text_of_a_server_is_escaped_and_cut() -> None:
    def shout(link: Link, request: RemotingCommand) -> None:
        link.reply(request, code=1, remark="\x1b[31m\n" + "x" * 100_000)

    def read(response: RemotingCommand, address: str) -> None:
        raise broker_error(response.code, response.remark, address=address)

    async with Peer(shout) as peer, name_servers(peer) as servers:
        with pytest.raises(NameServerError) as caught:
            await servers.ask(ASK, 1.0, read)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000


@pytest.mark.parametrize("steps", range(12))
async def test_cancelling_a_request_leaves_no_entry(steps: int) -> None:
    pool = new_pool()
    async with Peer(silence) as first, Peer(silence) as second, name_servers(first, second, pool=pool) as servers:
        call = asyncio.ensure_future(servers.request(ASK, 5.0))
        for _ in range(steps):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not any(connection.pending for connection in pool.connections))


@pytest.mark.virtual_time
async def test_a_server_in_back_off_is_asked_after_the_others() -> None:
    pool = new_pool()
    async with Peer() as first, Peer() as second, Peer() as third, name_servers(first, second, third, pool=pool) as servers:
        await servers.request(ASK, 1.0)
        await first.stop()
        await second.stop()
        assert (await servers.request(ASK, 1.0))[1] == third.address
        start = monotonic()
        await third.stop()
        await second.start()
        await first.start()
        assert (await servers.request(ASK, 3.0))[1] in (first.address, second.address)
        assert monotonic() - start < 0.01
        with pytest.raises(RequestTimeoutError):
            await pool.request(first.address, RemotingCommand(code=1), 0.0)
