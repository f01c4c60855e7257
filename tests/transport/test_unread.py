"""Writing to a peer that does not read: what waits, what it costs, and what becomes of it."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import pytest
import trustme

from rmq_async.errors import ConnectionLostError, RequestTimeoutError
from rmq_async.transport import CloseReason, Connection, ConnectionSettings

from ..support.fakes import Link, Peer, ThreadedPeer, stored
from .support import FRAME, Recorder, Sender, bytes_frame, connect, rss, until

pytestmark = pytest.mark.usefixtures("each_way_on_one_loop")


async def test_held_requests_leave_in_order_when_the_peer_reads_again() -> None:
    async with Peer(stored, reading=False) as peer, connect(peer) as connection:
        peer.answer = lambda link, request: link.reply(request)
        link = await peer.accepted()
        sender = Sender(connection, timeout=20)
        futures = [sender.submit(bytes([number]) * 100_000) for number in range(200)]
        assert not connection.requests.takes_oneways()
        assert connection.requests.in_flight < 200
        assert connection.buffered_bytes < 200_000, "the transport holds one write at most"
        link.transport.resume_reading()
        await asyncio.gather(*futures)
        assert [request.body[0] for request in peer.requests] == list(range(200))


async def test_sends_to_a_peer_that_never_reads_cost_no_memory_once_timed_out() -> None:
    # The kernel's buffers are full: real ones, so that what the process keeps shows. Each round waits for its time-outs.
    async with Peer(reading=False) as peer, connect(peer, dead_after=3600.0) as connection:
        await peer.accepted()
        sender = Sender(connection, timeout=0.02, window=1 << 20)
        filler = sender.submit(bytes(8 << 20), timeout=1000)
        assert not connection.requests.takes_oneways()
        levels = []
        for _ in range(10):
            futures = [sender.submit(b"0123456789") for _ in range(10_000)]
            sender.opaques.clear()
            answers = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(answer, RequestTimeoutError) and not answer.maybe_stored for answer in answers)
            assert connection.pending == 1
            del futures, answers
            levels.append(rss())
        assert max(levels) - levels[0] <= 16 << 20, levels
        assert connection.buffered_bytes < 9 << 20
        filler.cancel()


async def test_oneway_frames_are_reported_once_the_kernel_has_them() -> None:
    recorder = Recorder()
    reported: list[int] = []
    async with Peer(reading=False) as peer, connect(peer, recorder=recorder) as connection:
        link = await peer.accepted()

        def written(cost: int) -> None:
            assert recorder.get_write_buffer_size() == 0
            reported.append(cost)

        connection.requests.submit_oneway(FRAME, written, 1)
        await asyncio.sleep(0.01)
        assert reported == [1]
        connection.requests.submit_oneway(bytes_frame(8 << 20), written, 2)
        connection.requests.submit_oneway(FRAME, written, 3)
        await asyncio.sleep(0.02)
        connection.requests.submit_oneway(FRAME, written, 4)
        await asyncio.sleep(0.01)
        assert reported == [1]
        link.transport.resume_reading()
        await until(lambda: reported == [1, 2, 3, 4])
        await until(lambda: peer.received == 4)


async def test_oneway_frames_that_never_left_are_reported_on_close() -> None:
    reported: list[int] = []
    async with Peer(reading=False) as peer, connect(peer) as connection:
        await peer.accepted()
        connection.requests.submit_oneway(bytes_frame(8 << 20), reported.append, 1)
        for number in range(2, 5):
            connection.requests.submit_oneway(FRAME, reported.append, number)
            await asyncio.sleep(0)
        connection.close(CloseReason.DEAD)
        assert reported == [1, 2, 3, 4]
        with pytest.raises(ConnectionLostError):
            connection.requests.submit_oneway(FRAME, reported.append, 5)
        assert reported == [1, 2, 3, 4]


async def test_sends_over_tls_leave_at_once() -> None:
    authority = trustme.CA()
    theirs, ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("127.0.0.1").configure_cert(theirs)
    authority.configure_trust(ours)
    loop = asyncio.get_running_loop()
    peer = Peer(stored)
    async with await loop.create_server(lambda: Link(peer), "127.0.0.1", 0, ssl=theirs) as server:
        host, port = server.sockets[0].getsockname()
        connection = Connection(f"{host}:{port}", ConnectionSettings(1 << 20))
        await loop.create_connection(lambda: connection, host, port, ssl=ours)
        sender = Sender(connection)
        for number in range(3):
            assert (await sender.send(b"%d" % number)).code == 0
            assert connection.requests.takes_oneways()
        await asyncio.gather(*[sender.submit(b"%d" % number) for number in range(300)])
        connection.close(CloseReason.LOCAL)
        await connection.closed
        await peer.stop()


async def test_closing_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        await peer.accepted()
        future = Sender(connection).submit(bytes(8 << 20))
        connection.close(CloseReason.LOCAL)
        await asyncio.wait_for(connection.closed, 60)
        with pytest.raises(ConnectionLostError) as caught:
            await future
        assert caught.value.maybe_stored


async def test_oneway_frames_queued_before_a_close_by_us_still_arrive() -> None:
    async with Peer() as peer, connect(peer) as connection:
        for _ in range(10):
            connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
        connection.close(CloseReason.LOCAL)
        await until(lambda: peer.received == 10)


async def test_a_fast_peer_in_another_thread_and_back_pressure_lose_nothing() -> None:
    def slow(link: Link, request: Any) -> None:
        link.reply(request)

    with ThreadedPeer(slow, keep=False) as peer:
        async with connect(peer) as connection:
            sender = Sender(connection, window=512, timeout=20)
            body = bytes(3000)
            await asyncio.gather(*[sender.submit(body) for _ in range(5000)])
            assert peer.received == 5000
            assert connection.pending == 0
