"""The pool: one connect for all who ask, names and families, its connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from rmq_async.config import ClientConfig
from rmq_async.errors import (
    ConfigError,
    ConnectError,
    ConnectionLostError,
    FrameTooLargeError,
    RequestTimeoutError,
)
from rmq_async.transport import CloseReason, Connection, ConnectionSettings, Pending
from rmq_async.transport import pool as pool_module
from rmq_async.transport.pool import split_address
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import SerializeType

from ..support.fakes import Link, Peer, echo, frame, response, silence
from ..support.holes import black_hole
from .support import free_port, ping, pool_of, spin, until


async def test_500_callers_share_one_connect() -> None:
    async with Peer() as peer, pool_of() as pool:
        connections = await asyncio.gather(*[pool.connect(peer.address, 60) for _ in range(500)])
        assert len(set(connections)) == 1
        assert len(peer.links) == 1
        assert pool.get(peer.address) is connections[0]
        assert pool.connections == (connections[0],)
        assert await pool.connect(peer.address, 0) is connections[0]


async def test_each_address_has_its_own_connection() -> None:
    async with Peer() as one, Peer() as two, pool_of() as pool:
        first, second = await asyncio.gather(pool.connect(one.address, 60), pool.connect(two.address, 60))
        assert (first.address, second.address) == (one.address, two.address)
        assert "2 open" in repr(pool)


async def test_one_caller_that_gives_up_stops_no_other() -> None:
    async with Peer() as peer, pool_of() as pool:
        callers = [asyncio.ensure_future(pool.connect(peer.address, 60)) for _ in range(3)]
        await spin()
        callers[0].cancel()
        assert (await callers[1]) is (await callers[2])
        with pytest.raises(asyncio.CancelledError):
            await callers[0]
        assert len(peer.links) == 1


async def test_a_refused_connect_is_reported_to_each_caller() -> None:
    address = f"127.0.0.1:{free_port()}"
    async with pool_of() as pool:
        errors = await asyncio.gather(*[pool.connect(address, 60) for _ in range(5)], return_exceptions=True)
        assert len({id(error) for error in errors}) == 5
        for error in errors:
            assert isinstance(error, ConnectError)
            assert error.address == address
            assert isinstance(error.__cause__, ConnectionRefusedError)
            assert error.retriable
            assert not error.maybe_stored
        assert pool.backing_off(address)
        text = f"no connection attempt to {address} for up to 1 s after a failure: cannot connect to {address}: "
        assert str(pool.refusal(address)).startswith(text)
        assert pool.get(address) is None


async def test_a_connect_without_an_answer_leaves_no_socket() -> None:
    with black_hole() as address:
        async with pool_of() as pool:
            with pytest.raises(RequestTimeoutError):
                await pool.connect(address, 0.02)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        ":1",
        "host:",
        "host:0",
        "host:70000",
        "host:-1",
        "host:٣",
        "h:" + "9" * 5000,
        "a\0b:1",
        "..:1",
        "x" * 300 + ":1",
        "é\udc80:1",
    ],
)
async def test_an_address_that_cannot_be_is_a_connect_error(address: str) -> None:
    async with pool_of() as pool:
        with pytest.raises(ConnectError):
            await pool.connect(address, 60)


def test_addresses() -> None:
    assert split_address("127.0.0.1:10911") == ("127.0.0.1", 10911)
    assert split_address("[::1]:10911") == ("::1", 10911)
    assert split_address("broker-a.example:1") == ("broker-a.example", 1)


async def test_names_and_ipv6() -> None:
    async with Peer() as four, Peer(host="::1") as six, pool_of() as pool:
        named = await pool.connect(f"localhost:{four.port}", 60)
        assert (await named.request(ping(b"4"), 60)).body == b"4"
        assert named.local_ip == "127.0.0.1"
        connection = await pool.connect(six.address, 60)
        assert (await connection.request(ping(b"6"), 60)).body == b"6"
        assert connection.local_ip == "::1"


async def test_a_name_with_several_addresses_is_tried_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Peer() as peer, pool_of() as pool:
        loop = asyncio.get_running_loop()

        async def look_up(host: str, port: int, **_: object) -> list[object]:
            hosts = ["::1", "127.0.0.1"]
            return [(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in hosts]

        if type(loop).__module__.startswith("asyncio"):
            monkeypatch.setattr(loop, "getaddrinfo", look_up)
        connection = await pool.connect(f"localhost:{peer.port}", 60)
        assert (await connection.request(ping(b"m"), 60)).body == b"m"


async def test_listeners_are_called_for_each_connection() -> None:
    events: list[tuple[str, bool]] = []
    callbacks = {
        "on_connected": lambda connection: events.append(("connected", connection.is_open)),
        "on_closed": lambda connection: events.append(("closed", connection.is_open)),
    }
    async with Peer() as peer, pool_of(callbacks=callbacks) as pool:
        for _ in range(2):
            connection = await pool.connect(peer.address, 60)
            await connection.request(ping(), 60)
            peer.link.close()
            await connection.closed
        assert events == [("connected", True), ("closed", False)] * 2


async def test_a_lost_connection_is_forgotten_before_its_requests_fail() -> None:
    async with Peer(silence) as peer, pool_of() as pool:
        connection = await pool.connect(peer.address, 60)
        seen: list[object] = []

        class Retrying:
            def done(self) -> bool:
                return False

            def set_exception(self, exception: BaseException) -> None:
                seen.append(pool.get(peer.address))

            def set_result(self, result: object) -> None: ...

        pending = Pending(Retrying(), 1e18, 1e18, 10, typed=False)
        connection.requests.start_request(connection.requests.next_opaque(), [frame(ping())], pending)
        connection.close(CloseReason.DEAD)
        assert seen == [None]


async def test_a_pool_hands_the_servers_requests_to_its_handler() -> None:
    def handle(connection: Connection, command: RemotingCommand) -> RemotingCommand:
        return response(command, code=9, body=connection.address.encode())

    async with Peer() as peer, pool_of(callbacks={"on_request": handle}) as pool:
        await pool.connect(peer.address, 60)
        link = await peer.accepted()
        link.ask(RemotingCommand(code=40, opaque=1))
        await until(lambda: link.requests)
        assert (link.requests[0].code, link.requests[0].body) == (9, peer.address.encode())


async def test_a_closed_connection_is_made_again_and_opaques_do_not_mix() -> None:
    async with Peer(silence) as peer, pool_of() as pool:
        first = await pool.connect(peer.address, 60)
        lost = asyncio.ensure_future(first.request(ping(b"old"), 60))
        await until(lambda: peer.received == 1)
        peer.link.close()
        with pytest.raises(ConnectionLostError):
            await lost
        peer.answer = echo
        second = await pool.connect(peer.address, 60)
        assert second is not first
        assert (await second.request(ping(b"new"), 60)).body == b"new"


@pytest.mark.virtual_time
async def test_500_callers_during_a_flapping_peer_all_end() -> None:
    async def call() -> None:
        for _ in range(5):
            try:
                connection = await pool.connect(peer.address, 60)
                await connection.request(ping(), 60)
            except (ConnectionLostError, ConnectError, RequestTimeoutError):
                pass

    def flap(link: Link, request: RemotingCommand) -> None:
        echo(link, request)
        if peer.received % 50 == 0:
            link.reset()

    async with Peer(flap, keep=False) as peer, pool_of() as pool:
        await asyncio.wait_for(asyncio.gather(*[call() for _ in range(100)]), 60)
        assert peer.received >= 100
        assert len(peer.links) > 1


def test_settings_that_cannot_work_are_refused() -> None:
    for name in ("connect_timeout", "idle_timeout", "request_timeout"):
        with pytest.raises(ConfigError, match=name):
            ClientConfig(**{name: 0})  # type: ignore[arg-type]


async def test_connection_settings_follow_config(monkeypatch: pytest.MonkeyPatch) -> None:
    silences: list[float] = []

    def made(address: str, settings: ConnectionSettings, **options: Any) -> Connection:
        silences.append(settings.dead_after)
        return Connection(address, settings, **options)

    monkeypatch.setattr(pool_module, "Connection", made)
    async with Peer() as peer, pool_of(request_timeout=30, serialize_type="rocketmq", max_frame_size=2048) as pool:
        connection = await pool.connect(peer.address, 60)
        assert connection.serialize_type == SerializeType.ROCKETMQ
        with pytest.raises(FrameTooLargeError, match="max_frame_size=2048"):
            await connection.request(ping(bytes(2048)), 60)
    async with Peer() as peer, pool_of(request_timeout=0.1) as pool:
        await pool.connect(peer.address, 60)
    assert silences == [60, 10]


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_slow_name_server_of_the_system_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up has a thread, which answers when the connects to another peer are done."""
    over = threading.Event()

    def slow(*_: object, **__: object) -> object:
        over.wait(60)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    async with Peer() as peer, pool_of() as pool:
        with pytest.raises(RequestTimeoutError):
            await pool.connect("broker.example:1", 0.02)
        waiting = asyncio.ensure_future(pool.connect("broker.example:1", 60))
        connection = await pool.connect(peer.address, 60)
        assert (await connection.request(ping(b"m"), 60)).body == b"m"
        assert not waiting.done()
        over.set()
        with pytest.raises(ConnectError, match="Name or service not known"):
            await waiting
