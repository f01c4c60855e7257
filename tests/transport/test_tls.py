"""TLS: who is believed, what a refused or broken handshake says, and nothing left of it; on both loops, which differ here."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import trustme

from rmq_async.config import ClientConfig
from rmq_async.errors import ClientStateError, ConnectError, ConnectionLostError, RequestTimeoutError, RocketMQError
from rmq_async.transport import CloseReason, Threads, client_context
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, reset, stored
from .support import FRAME, Sender, ping, pool_of, spin, until

pytestmark = pytest.mark.interpreters

AUTHORITY = trustme.CA()
TRUST = AUTHORITY.cert_pem.bytes().decode()
HOST = "127.0.0.1"


def server(*names: str, authority: trustme.CA = AUTHORITY, **options: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or (HOST,)), **options).configure_cert(context)
    return context


def client(*, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=TRUST)
    if certificate:
        AUTHORITY.issue_cert("client.example").configure_cert(context)
    return context


def demanding(**options: Any) -> ssl.SSLContext:
    """A server's context that wants to see a client's certificate."""
    context = server(**options)
    context.verify_mode = ssl.CERT_REQUIRED
    AUTHORITY.configure_trust(context)
    return context


def expired() -> ssl.SSLContext:
    return server(not_after=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))


@contextmanager
def openssl_server(context: ssl.SSLContext) -> Iterator[tuple[str, list[bytes]]]:
    """One that sends its peer why it refuses it, as Java's do and asyncio's do not; its address and what clients sent to it."""
    received: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return  # closed
            accepted.settimeout(5)
            with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as wrapped, suppress(OSError):
                try:
                    wrapped.do_handshake()
                    received.append(wrapped.recv(1000))
                finally:  # what is left unread would reset the connection, and the client never read why
                    socket.socket.shutdown(wrapped, socket.SHUT_WR)
                    while socket.socket.recv(wrapped, 1000):
                        pass

    with socket.create_server((HOST, 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield address_of(listener), received
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def deaf_server() -> Iterator[socket.socket]:
    """The kernel accepts for it; no program reads."""
    with socket.create_server((HOST, 0)) as listener:
        listener.setblocking(False)
        yield listener


def address_of(listener: socket.socket) -> str:
    return f"{HOST}:{listener.getsockname()[1]}"


async def test_a_trusted_server_is_spoken_to_in_tls_1_3() -> None:
    async with Peer(tls=server()) as peer, pool_of(tls=client()) as pool:
        connection = await pool.connect(peer.address, 60)
        link = await peer.accepted()
        body = bytes(range(256)) * 8192
        assert (await connection.request(ping(body), 60)).body == body
        assert link.transport.get_extra_info("ssl_object").version() == "TLSv1.3"
        assert connection.local_ip == HOST


async def test_a_context_of_ours_takes_the_systems_authorities_and_nothing_below_1_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda self, *_: self.load_verify_locations(cadata=TRUST))
    threads = Threads()
    context = await client_context(ClientConfig(tls=True), threads)
    threads.close()
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    async with Peer(tls=server()) as peer, pool_of(tls=True) as pool:
        assert (await (await pool.connect(peer.address, 60)).request(ping(b"1"), 60)).body == b"1"


async def test_a_context_of_the_users_is_taken_as_it_is_and_without_tls_there_is_none() -> None:
    own, threads = client(), Threads()
    assert await client_context(ClientConfig(tls=own), threads) is own
    assert await client_context(ClientConfig(), threads) is None
    threads.close()


async def test_a_name_in_the_certificate_can_be_asked_for_where_routes_have_addresses() -> None:
    async with Peer(tls=server("mq.example")) as peer:
        async with pool_of(tls=client(), server_hostname="mq.example") as pool:
            assert (await pool.connect(peer.address, 60)).is_open
        async with pool_of(tls=client(), server_hostname="other.example") as pool:
            with pytest.raises(ConnectError, match="certificate is not accepted: Hostname mismatch"):
                await pool.connect(peer.address, 60)


@pytest.mark.parametrize(
    ("context", "reason"),
    [
        (lambda: server("other.example"), "certificate is not accepted: IP address mismatch"),
        (expired, "certificate is not accepted: certificate has expired"),
        (lambda: server(authority=trustme.CA()), "certificate is not accepted: unable to get local issuer certificate"),
        (lambda: self_signed(), "certificate is not accepted: self"),
    ],
    ids=["wrong host", "expired", "unknown authority", "self-signed"],
)
async def test_a_server_that_cannot_be_trusted_gets_nothing_and_the_error_says_why(context: Any, reason: str) -> None:
    async with Peer(tls=context()) as peer, pool_of(tls=client()) as pool:
        with pytest.raises(ConnectError) as caught:
            await pool.connect(peer.address, 60)
        assert str(caught.value) == f"cannot connect to {peer.address}: {reason_of(caught.value)}"
        assert reason in str(caught.value)
        assert caught.value.address == peer.address
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert pool.is_down(peer.address)
        await spin(10)
        assert peer.received == 0


def reason_of(error: ConnectError) -> str:
    return str(error).partition(": ")[2]


def self_signed() -> ssl.SSLContext:
    """The authority's own certificate, which signs itself, as the server's."""
    other = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with other.cert_pem.tempfile() as certificate, other.private_key_pem.tempfile() as key:
        context.load_cert_chain(certificate, key)
    return context


def old_versions_only() -> ssl.SSLContext:
    context = server()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


async def test_unverified_needs_a_word_and_gives_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with Peer(tls=self_signed()) as peer, pool_of(tls=True, tls_verify=False) as pool:
        first = await pool.connect(peer.address, 60)
        first.close(CloseReason.LOCAL)
        second = await pool.connect(peer.address, 60)
        assert second is not first
        assert (await second.request(ping(b"1"), 60)).body == b"1"
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "tls_verify=False" in warned[0]


async def test_a_server_without_tls_is_never_spoken_to_in_plain() -> None:
    seen: list[bytes] = []
    answers = [b"", b"\0\0\0\x10\0\0\0\x0c{}"]

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(1000))
        writer.write(answers.pop())
        writer.close()

    plain = await asyncio.start_server(keep, HOST)
    async with plain:
        address = f"{HOST}:{plain.sockets[0].getsockname()[1]}"
        for reason in ("the server does not speak TLS", "closed the connection during the TLS handshake; it may not speak TLS"):
            async with pool_of(tls=client()) as pool:
                with pytest.raises(ConnectError, match=reason):
                    await pool.connect(address, 60)
    assert len(seen) == 2
    assert all(first[:1] == b"\x16" for first in seen)  # a TLS handshake record
    with pytest.raises(ConnectError, match="Connection refused"):
        async with pool_of(tls=client()) as pool:
            await pool.connect(address, 60)


async def test_a_client_without_tls_learns_that_the_connection_closed() -> None:
    async with Peer(tls=server()) as peer, pool_of() as pool:
        connection = await pool.connect(peer.address, 60)
        with pytest.raises(RocketMQError) as caught:
            await connection.request(ping(), 60)
        assert not isinstance(caught.value, RequestTimeoutError)


async def test_a_server_of_old_versions_only_is_refused() -> None:
    with openssl_server(old_versions_only()) as (address, received):
        async with pool_of(tls=client()) as pool:
            with pytest.raises(ConnectError, match=r"TLS failed .*(PROTOCOL_VERSION|legacy sigalg)"):
                await pool.connect(address, 60)
    assert not received


async def test_mutual_tls_shows_the_clients_certificate() -> None:
    async with Peer(tls=demanding()) as peer, pool_of(tls=client(certificate=True)) as pool:
        assert (await (await pool.connect(peer.address, 60)).request(ping(b"1"), 60)).body == b"1"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_mutual_tls_without_a_certificate_says_so(version: ssl.TLSVersion) -> None:
    context = demanding()
    context.minimum_version = context.maximum_version = version
    with openssl_server(context) as (address, received):
        async with pool_of(tls=client()) as pool:
            # With 1.3 the handshake ends well for the client, and its first read fails.
            with pytest.raises((ConnectError, ConnectionLostError)) as caught:
                await (await pool.connect(address, 60)).request(ping(), 60)
            assert re.search("requires (one|a client certificate)", str(caught.value))
            assert isinstance(caught.value.__cause__, ssl.SSLError)
            assert isinstance(caught.value, ConnectError) == (version is ssl.TLSVersion.TLSv1_2)
            assert pool.is_down(address)
    assert not received


async def test_a_server_that_leaves_right_after_the_handshake_is_reported_as_such() -> None:
    async with Peer(reset, tls=server()) as peer, pool_of(tls=client()) as pool:
        with pytest.raises(ConnectionLostError, match="right after the TLS handshake: the server may require a client certif"):
            await (await pool.connect(peer.address, 60)).request(ping(), 60)
    async with Peer(reset) as peer, pool_of() as pool:
        with pytest.raises(ConnectionLostError) as caught:
            await (await pool.connect(peer.address, 60)).request(ping(), 60)
        assert "TLS" not in str(caught.value)


async def test_a_certificate_of_an_unknown_authority_is_refused_by_the_server() -> None:
    shown = client()
    trustme.CA().issue_cert("client.example").configure_cert(shown)
    with openssl_server(demanding()) as (address, received):
        async with pool_of(tls=shown) as pool:
            with pytest.raises(ConnectionLostError, match=r"refuses this client's certificate.*UNKNOWN_CA"):
                await (await pool.connect(address, 60)).request(ping(), 60)
    assert not received


async def test_a_silent_handshake_ends_with_the_connect_timeout() -> None:
    with deaf_server() as listener:
        async with pool_of(tls=client(), connect_timeout=0.04) as pool:
            with pytest.raises(ConnectError, match=r"within 0\.04 s"):
                await pool.connect(address_of(listener), 60)


async def test_stopping_in_a_handshake_leaves_nothing() -> None:
    with deaf_server() as listener:
        async with pool_of(tls=client()) as pool:
            waiting = asyncio.ensure_future(pool.connect(address_of(listener), 60))
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            with accepted:
                await pool.aclose()
                with pytest.raises(ClientStateError):
                    await waiting


async def test_what_was_written_before_a_close_arrives() -> None:
    async with Peer(tls=server()) as peer, pool_of(tls=client()) as pool:
        connection = await pool.connect(peer.address, 60)
        for _ in range(10):
            connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
        connection.requests.submit_oneway(bytes_of(200_000), lambda cost: None, 1)
        await pool.aclose()
        assert connection.closed.done()
        await until(lambda: peer.received == 11)


def bytes_of(size: int) -> bytes:
    from rmq_protocol.command import RemotingCommand

    from ..support.fakes import frame

    return frame(RemotingCommand(code=1, flag=2, body=bytes(size)))


async def test_a_peer_that_says_no_goodbye_holds_up_no_close() -> None:
    async with Peer(tls=server()) as peer, pool_of(tls=client()) as pool:
        await pool.connect(peer.address, 60)
        link = await peer.accepted()
        link.transport.pause_reading()
        await asyncio.wait_for(pool.aclose(), 60)  # TLS is not simulated: it takes the real SHUTDOWN_TIMEOUT


async def test_a_peer_that_ends_the_stream_or_breaks_it_ends_what_is_pending() -> None:
    for how, reason in ((Link.fin, CloseReason.PEER), (Link.rst, None)):

        def answer(link: Link, request: RemotingCommand, how: Callable[[Link], None] = how) -> None:
            how(link)

        async with Peer(answer, tls=server()) as peer, pool_of(tls=client()) as pool:
            connection = await pool.connect(peer.address, 60)
            with pytest.raises(ConnectionLostError) as caught:
                await connection.request(ping(), 60)
            assert caught.value.maybe_stored
            assert reason in (None, connection.close_reason)


async def test_thousands_of_sends_and_a_slow_reader_lose_nothing() -> None:
    async with Peer(stored, tls=server(), keep=False) as peer, pool_of(tls=client()) as pool:
        connection = await pool.connect(peer.address, 60)
        sender = Sender(connection, window=256, timeout=20)
        results = [sender.submit(b"%03d" % (number % 1000) * 300) for number in range(1500)]
        link = await peer.accepted()
        for _ in range(3):
            link.transport.pause_reading()
            await asyncio.sleep(0.02)
            link.transport.resume_reading()
            await asyncio.sleep(0.01)
        assert {reply.code for reply in await asyncio.gather(*results)} == {0}
        assert peer.received == 1500


@asynccontextmanager
async def cutting(peer: Peer) -> AsyncIterator[tuple[str, list[int]]]:
    """A way to ``peer`` that lets ``limits[-1]`` bytes through, both directions together, and then closes."""
    limits = [1 << 30]
    tasks: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: list[int], ends: list[Any]) -> None:
        while left[0] > 0 and (data := await reader.read(left[0])):
            data = data[: left[0]]
            left[0] -= len(data)
            writer.write(data)
            limits[0] = left[0]
        for end in ends:
            end.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_connection(peer.host, peer.port)
        left, ends = [limits[-1]], [writer, far_writer]
        await asyncio.gather(
            carry(reader, far_writer, left, ends), carry(far_reader, writer, left, ends), return_exceptions=True
        )
        await asyncio.gather(*[end.wait_closed() for end in ends], return_exceptions=True)

    way = await asyncio.start_server(accept, HOST)
    try:
        yield f"{HOST}:{way.sockets[0].getsockname()[1]}", limits
    finally:
        way.close()
        if tasks:
            await asyncio.wait(tasks, timeout=60)


async def test_a_handshake_cut_anywhere_is_an_error_of_ours_and_leaves_nothing() -> None:
    async with Peer(tls=server()) as peer, cutting(peer) as (address, limits):
        async with pool_of(tls=client()) as pool:
            await (await pool.connect(address, 60)).request(ping(), 60)
            whole = (1 << 30) - limits[0]
        assert 1500 < whole < 10_000
        for cut in range(1, whole - 300, whole // 40):
            limits.append(cut)
            async with pool_of(tls=client()) as pool:
                with pytest.raises((ConnectError, ConnectionLostError)):
                    await (await pool.connect(address, 60)).request(ping(), 60)


def test_a_context_for_servers_is_a_config_error() -> None:
    with pytest.raises(ValueError, match="for clients, not for servers"):
        ClientConfig(tls=server())


async def test_a_connection_reset_in_the_handshake_says_what_may_be_wrong() -> None:
    with deaf_server() as listener:
        async with pool_of(tls=client()) as pool:
            connecting = asyncio.ensure_future(pool.connect(address_of(listener), 60))
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            await asyncio.sleep(0.01)
            accepted.close()  # with the client's hello unread: a reset
            with pytest.raises(ConnectError, match="closed the connection during the TLS handshake"):
                await connecting
