"""How frames reach the socket: at once when idle, together under load, bounded when the peer does not read."""

from __future__ import annotations

import asyncio
import ssl
from time import monotonic
from typing import Any

import pytest
import trustme
import uvloop

from rmq_async.errors import ConnectionLostError, RequestTimeoutError
from rmq_async.transport import CloseReason, Connection
from rmq_async.transport.coalescer import GATHER_FROM
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import SerializeType

from .peer import Link, Peer, ThreadedPeer, silence, stored
from .support import FRAME, Exact, Recorder, Sender, connect, ping, rss, spin, template, until


@pytest.fixture(autouse=True)
async def each_way_on_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without properties have a path of their own; all of this holds for it too. It is the one on uvloop here."""
    monkeypatch.setattr(Sender, "plain", isinstance(asyncio.get_running_loop(), uvloop.Loop))


async def test_an_idle_connection_writes_at_once() -> None:
    async with Peer() as peer, connect(peer) as connection:
        recorder = Recorder(connection)
        for number in range(3):
            future = Sender(connection).submit(b"%d" % number)
            assert len(recorder.writes) == number + 1
            await future
        assert connection.writes == 3


async def test_a_burst_leaves_in_one_write() -> None:
    async with Peer(stored) as peer, connect(peer) as connection:
        recorder, sender = Recorder(connection), Sender(connection)
        futures = [sender.submit(b"%d" % number) for number in range(50)]
        assert len(recorder.writes) == 1, "the first found the connection idle"
        await asyncio.gather(*futures)
        assert len(recorder.writes) == 2, "the others left together"
        assert [request.body for request in peer.requests] == [b"%d" % number for number in range(50)]


async def test_control_requests_and_oneways_join_the_burst() -> None:
    async with Peer(stored) as peer, connect(peer) as connection:
        recorder = Recorder(connection)
        first = Sender(connection).submit(b"1")
        connection.submit_oneway(FRAME, lambda cost: None, 1)
        control = Sender(connection, window=1 << 30).submit(b"3")
        await asyncio.gather(first, control)
        assert len(recorder.writes) == 2
        assert [request.body for request in peer.requests] == [b"1", b"0123456789", b"3"]


async def test_gathered_frames_leave_with_the_answers_that_leave_few_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.transport.coalescer.GATHER_SECONDS", 30.0)
    asked: list[RemotingCommand] = []

    def keep(link: Link, request: RemotingCommand) -> None:
        asked.append(request)

    async with Peer(keep) as peer, connect(peer) as connection:
        recorder, sender = Recorder(connection), Sender(connection)
        futures = [sender.submit(b"%d" % number) for number in range(GATHER_FROM + 8)]
        await until(lambda: len(asked) == GATHER_FROM + 8)
        writes = len(recorder.writes)
        gathered = [sender.submit(b"late") for _ in range(3)]
        await spin(3)
        assert len(recorder.writes) == writes, "they wait for answers"
        for request in asked[:16]:
            stored(peer.link, request)
        await until(lambda: len(asked) == GATHER_FROM + 11)
        assert len(recorder.writes) == writes + 1
        for request in asked[16:]:
            stored(peer.link, request)
        await asyncio.gather(*futures, *gathered)


async def test_large_bodies_are_handed_over_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.transport.coalescer.WRITELINES_PAUSES", True)
    body = bytes(40_000)
    async with Peer(stored) as peer, connect(peer) as connection:
        recorder, sender = Recorder(connection), Sender(connection)
        peer.answer = lambda link, request: link.reply(request, body=b"")
        await asyncio.gather(*[sender.submit(body) for _ in range(2)])
        for parts in recorder.writes:
            assert isinstance(parts, list)
            assert parts[-1] is body


@pytest.mark.parametrize(("size", "largest"), [(10, 64 * 400), (1000, 64 * 1400), (5000, 64 * 1024 + 6000)])
async def test_a_long_burst_does_not_wait_for_the_loop_as_a_whole(size: int, largest: int) -> None:
    """64 frames, or 64 KiB of large ones, are enough for a write."""
    body = bytes(size)
    async with Peer(silence, keep=False) as peer, connect(peer) as connection:
        recorder, sender = Recorder(connection), Sender(connection, timeout=0.5)
        futures = [sender.submit(body) for _ in range(300)]
        assert len(recorder.writes) > 4
        assert max(recorder.sizes) <= largest
        assert sum(recorder.sizes) >= 300 * size - largest
        await until(lambda: peer.received == 300)
        assert len(recorder.writes) <= 1 + -(-300 // 13)
        for future in futures:
            future.cancel()
        for opaque in sender.opaques:
            connection.forget(opaque)


async def test_64_workers_share_writes() -> None:
    async with Peer(stored, keep=False) as peer, connect(peer) as connection:
        sender = Sender(connection)

        async def work(number: int) -> None:
            for turn in range(50):
                reply = await sender.send(b"%d-%d" % (number, turn))
                assert reply.extFields is not None
                assert reply.extFields.msgId == f"{number}-{turn}"

        recorder = Recorder(connection)
        await asyncio.gather(*[work(number) for number in range(64)])
        assert peer.received == 3200
        assert len(recorder.writes) <= 3200 // 8
        assert connection.writes == len(recorder.writes)


@pytest.mark.parametrize("long_poll", [True, False])
@pytest.mark.parametrize("waiting", [1, 5, 100])
async def test_a_send_does_not_wait_for_answers_to_others(waiting: int, long_poll: bool) -> None:
    """Pulls wait at the broker for seconds, and a slow request says nothing about the next one."""

    def answer(link: Link, request: Any) -> None:
        if request.body != b"slow":
            stored(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        slow = [asyncio.ensure_future(connection.request(ping(b"slow"), 5, long_poll=long_poll)) for _ in range(waiting)]
        await until(lambda: peer.received == waiting)
        sender = Sender(connection, timeout=2)
        with Exact() as exact:
            for number in range(3):
                started = monotonic()
                await sender.send(b"%d" % number)
                exact.check(monotonic() - started, 0)
                await asyncio.sleep(0.01)
            started = monotonic()
            reported: list[float] = []
            connection.submit_oneway(FRAME, lambda cost: reported.append(monotonic() - started), 1)
            await until(lambda: peer.received == waiting + 4, 1)
            exact.check(reported[0], 0)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)


async def test_nagle_is_off() -> None:
    import socket

    async with Peer() as peer, connect(peer) as connection:
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# -- the window of unanswered sends


async def test_sends_above_the_window_wait_for_answers_in_order() -> None:
    requests: list[Any] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        sender = Sender(connection, window=4)
        futures = [sender.submit(b"%d" % number) for number in range(10)]
        assert (connection.in_flight, connection.pending) == (4, 10)
        for answered in range(10):
            left, seen = 10 - answered, min(10, answered + 4)
            await until(lambda left=left, seen=seen: (connection.pending, len(requests)) == (left, seen))
            await asyncio.sleep(0.002)
            assert len(requests) == seen
            assert connection.in_flight == min(4, left)
            peer.link.reply(requests[answered], body=b"")
        await asyncio.gather(*futures)
        assert [request.body for request in requests] == [b"%d" % number for number in range(10)]


async def test_a_sender_with_a_wider_window_does_not_overtake_what_is_held() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        narrow, wide = Sender(connection, window=1), Sender(connection, window=100)
        futures = [narrow.submit(b"1"), narrow.submit(b"2"), wide.submit(b"3")]
        await until(lambda: peer.received == 1)
        await spin(3)
        stored(peer.link, peer.requests[0])
        await until(lambda: peer.received >= 2)
        assert [request.body for request in peer.requests][:2] == [b"1", b"2"]
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(*futures, return_exceptions=True)


async def test_held_sends_time_out_as_surely_not_stored() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=2)
        futures = [sender.submit(b"%d" % number, timeout=0.3 if number < 2 else 0.1) for number in range(5)]
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(answer, RequestTimeoutError) for answer in answers)
        assert [answer.maybe_stored for answer in answers] == [True, True, False, False, False]  # type: ignore[union-attr]
        await asyncio.sleep(0.05)
        assert [request.body for request in peer.requests] == [b"0", b"1"]


async def test_a_cancelled_held_send_never_leaves() -> None:
    held: list[Any] = []
    async with Peer(lambda link, request: held.append(request)) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        tasks = [asyncio.ensure_future(sender.send(b"%d" % number)) for number in range(4)]
        await until(lambda: held)
        tasks[1].cancel()
        tasks[2].cancel()
        await asyncio.wait(tasks[1:3])
        assert (connection.in_flight, connection.pending) == (1, 2)
        peer.answer = stored
        peer.link.reply(held[0], body=b"")
        await asyncio.gather(tasks[0], tasks[3])
        assert [request.body for request in peer.requests] == [b"0", b"3"]


async def test_a_cancelled_held_send_lets_the_one_way_frame_behind_it_go() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        first = sender.submit(b"0")
        held = asyncio.ensure_future(sender.send(b"1"))
        await until(lambda: peer.received == 1 and connection.pending == 2)
        connection.submit_oneway(FRAME, lambda cost: None, 1)
        held.cancel()
        await until(lambda: peer.received == 2, 1.0)
        assert [request.body for request in peer.requests] == [b"0", b"0123456789"]
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(first, return_exceptions=True)


FORGED = {"msgId": "forged", "queueId": "1", "queueOffset": "7"}


@pytest.mark.parametrize("form", list(SerializeType))
async def test_an_answer_to_what_is_held_is_a_stray(form: SerializeType) -> None:
    """The next opaques can be guessed. What is answered before it was asked is neither stored nor forgotten."""

    def answer(link: Link, request: Any) -> None:
        for ahead in range(1, 4):
            link.reply(request, opaque=request.opaque + ahead, body=b"", ext_fields=FORGED)
        stored(link, request)

    async with Peer(answer, form=form) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        replies = await asyncio.gather(*[sender.submit(b"%d" % number) for number in range(3)])
        assert [reply.extFields.msgId for reply in replies if reply.extFields] == ["0", "1", "2"]
        assert connection.strays == 9


async def test_answers_of_a_peer_that_does_not_read_end_nothing_that_is_held() -> None:
    """Or sends would take no credit and their frames would pile up."""
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        sender = Sender(connection, timeout=10)
        filler = sender.submit(bytes(8 << 20))
        held = [sender.submit(b"%d" % number) for number in range(3)]
        control = asyncio.ensure_future(connection.request(ping(b"control"), 10))
        await asyncio.sleep(0)
        for ahead in range(1, 5):
            link.reply(ping(), opaque=sender.opaques[0] + ahead, body=b"", ext_fields=FORGED)
        await until(lambda: connection.strays == 4)
        assert not any(future.done() for future in (*held, control))
        peer.answer = lambda link, request: link.reply(request, body=b"") if request.body[1:] else stored(link, request)
        link.transport.resume_reading()
        replies = await asyncio.gather(*held)
        assert [reply.extFields.msgId for reply in replies if reply.extFields] == ["0", "1", "2"]
        assert (await control).ext_fields is None
        await filler


async def test_cancelling_a_send_on_the_wire_lets_a_held_one_go() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        tasks = [asyncio.ensure_future(sender.send(b"%d" % number)) for number in range(2)]
        await until(lambda: peer.received == 1)
        tasks[0].cancel()
        await until(lambda: peer.received == 2)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert connection.pending == 0


async def test_control_requests_take_no_place_in_the_window() -> None:
    def answer(link: Link, request: Any) -> None:
        if request.body != b"poll":
            stored(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        polls = [asyncio.ensure_future(connection.request(ping(b"poll"), 5, long_poll=True)) for _ in range(5)]
        await until(lambda: peer.received == 5)
        sender = Sender(connection, window=2, timeout=1)
        futures = [sender.submit(b"%d" % number) for number in range(10)]
        assert connection.in_flight == 7, "five polls and a window of two"
        await asyncio.gather(*futures)
        polls[0].cancel()
        await asyncio.wait(polls[:1])
        assert (await sender.send(b"m")).code == 0
        for poll in polls:
            poll.cancel()
        await asyncio.wait(polls)
        assert connection.in_flight == 0


async def test_control_requests_pass_the_sends_that_are_held() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1, timeout=0.3)
        futures = [sender.submit(b"%d" % number) for number in range(5)]
        peer.answer = lambda link, request: link.reply(request) if request.body == b"control" else None
        assert (await connection.request(ping(b"control"), 1)).body == b"control"
        assert [request.body for request in peer.requests] == [b"0", b"control"]
        await asyncio.gather(*futures, return_exceptions=True)


async def test_control_requests_pass_held_sends_also_after_a_pause() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        sender = Sender(connection, window=1, timeout=10)
        filler = sender.submit(bytes(8 << 20))
        held = [sender.submit(b"%d" % number) for number in range(3)]
        control = asyncio.ensure_future(connection.request(ping(b"control"), 10))
        await asyncio.sleep(0.01)
        assert (connection.in_flight, connection.pending) == (1, 5)
        peer.answer = lambda link, request: link.reply(request, body=b"") if request.body == b"control" else None
        link.transport.resume_reading()
        await control
        assert [request.body for request in peer.requests[1:]] == [b"control"], "the window is still taken by the large one"
        peer.answer = stored
        link.reply(peer.requests[0], body=b"")
        await asyncio.gather(filler, *held)


async def test_a_cancelled_control_request_held_by_a_pause_never_leaves() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        connection.submit_oneway(bytes_frame(8 << 20), lambda cost: None, 1)
        await until(lambda: connection._writer.paused)
        tasks = [asyncio.ensure_future(connection.request(ping(b"%d" % number), 5)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert (connection.pending, connection.in_flight) == (2, 0)
        link.transport.resume_reading()
        await asyncio.gather(tasks[0], tasks[2])
        assert [request.body for request in peer.requests[1:]] == [b"0", b"2"]


# -- a peer that does not read


def bytes_frame(size: int) -> list[bytes]:
    parts = template(oneway=True).parts(1_000_000_000, b"1700000000000", "", bytes(size))
    assert isinstance(parts, list)
    return parts


async def test_held_requests_leave_in_order_when_the_peer_reads_again() -> None:
    async with Peer(stored, reading=False) as peer, connect(peer) as connection:
        peer.answer = lambda link, request: link.reply(request, body=b"")
        link = await peer.accepted()
        sender = Sender(connection, timeout=20)
        futures = [sender.submit(bytes([number]) * 100_000) for number in range(200)]
        assert connection._writer.paused
        assert connection.in_flight < 200
        assert connection.buffered_bytes < 200_000, "the transport holds one write at most"
        link.transport.resume_reading()
        await asyncio.gather(*futures)
        assert [request.body[0] for request in peer.requests] == list(range(200))


async def test_sends_to_a_peer_that_never_reads_cost_no_memory_once_timed_out() -> None:
    async with Peer(reading=False) as peer, connect(peer, dead_after=120.0) as connection:
        await peer.accepted()
        sender = Sender(connection, timeout=0.05, window=1 << 20)
        filler = sender.submit(bytes(8 << 20), timeout=20)
        assert connection._writer.paused
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
    reported: list[int] = []
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()

        def written(cost: int) -> None:
            assert connection._transport.get_write_buffer_size() == 0
            reported.append(cost)

        connection.submit_oneway(FRAME, written, 1)
        await asyncio.sleep(0.01)
        assert reported == [1]
        connection.submit_oneway(bytes_frame(8 << 20), written, 2)
        connection.submit_oneway(FRAME, written, 3)
        await asyncio.sleep(0.05)
        connection.submit_oneway(FRAME, written, 4)
        await asyncio.sleep(0.05)
        assert reported == [1]
        link.transport.resume_reading()
        await until(lambda: reported == [1, 2, 3, 4])
        await until(lambda: peer.received == 4)


async def test_oneway_frames_that_never_left_are_reported_on_close() -> None:
    reported: list[int] = []
    async with Peer(reading=False) as peer, connect(peer) as connection:
        await peer.accepted()
        connection.submit_oneway(bytes_frame(8 << 20), reported.append, 1)
        for number in range(2, 5):
            connection.submit_oneway(FRAME, reported.append, number)
            await asyncio.sleep(0)
        connection.close(CloseReason.DEAD)
        assert reported == [1, 2, 3, 4]
        with pytest.raises(ConnectionLostError):
            connection.submit_oneway(FRAME, reported.append, 5)
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
        connection = Connection(f"{host}:{port}", max_frame_size=1 << 20)
        await loop.create_connection(lambda: connection, host, port, ssl=ours)
        sender = Sender(connection, timeout=1)
        for number in range(3):
            assert (await sender.send(b"%d" % number)).code == 0
            assert not connection._writer.paused
        await asyncio.gather(*[sender.submit(b"%d" % number) for number in range(300)])
        connection.close(CloseReason.LOCAL)
        await connection.closed
        await peer.stop()


async def test_closing_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        await peer.accepted()
        future = Sender(connection).submit(bytes(8 << 20))
        connection.close(CloseReason.LOCAL)
        await asyncio.wait_for(connection.closed, 1)
        with pytest.raises(ConnectionLostError) as caught:
            await future
        assert caught.value.maybe_stored


async def test_oneway_frames_queued_before_a_close_by_us_still_arrive() -> None:
    async with Peer() as peer, connect(peer) as connection:
        for _ in range(10):
            connection.submit_oneway(FRAME, lambda cost: None, 1)
        connection.close(CloseReason.LOCAL)
        await until(lambda: peer.received == 10)


async def test_a_fast_peer_in_another_thread_and_back_pressure_lose_nothing() -> None:
    def slow(link: Link, request: Any) -> None:
        link.reply(request, body=b"")

    with ThreadedPeer(slow, keep=False) as peer:
        async with connect(peer) as connection:
            sender = Sender(connection, window=512, timeout=20)
            body = bytes(3000)
            await asyncio.gather(*[sender.submit(body) for _ in range(5000)])
            assert peer.received == 5000
            assert connection.pending == 0
