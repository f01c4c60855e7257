"""How frames reach the socket: at once when idle, together under load."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async.transport.coalescer import GATHER_FROM
from rmq_protocol.command import RemotingCommand

from ..support.fakes import Link, Peer, silence, stored
from .support import FRAME, Recorder, Sender, connect, ping, spin, takes, until

pytestmark = [pytest.mark.usefixtures("each_way_on_one_loop"), pytest.mark.interpreters]


async def test_an_idle_connection_writes_at_once() -> None:
    recorder = Recorder()
    async with Peer() as peer, connect(peer, recorder=recorder) as connection:
        for number in range(3):
            future = Sender(connection).submit(b"%d" % number)
            assert len(recorder.writes) == number + 1
            await future
        assert connection.writes == 3


async def test_a_burst_leaves_in_one_write() -> None:
    recorder = Recorder()
    async with Peer(stored) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection)
        futures = [sender.submit(b"%d" % number) for number in range(50)]
        assert len(recorder.writes) == 1, "the first found the connection idle"
        await asyncio.gather(*futures)
        assert len(recorder.writes) == 2, "the others left together"
        assert [request.body for request in peer.requests] == [b"%d" % number for number in range(50)]


async def test_control_requests_and_oneways_join_the_burst() -> None:
    recorder = Recorder()
    async with Peer(stored) as peer, connect(peer, recorder=recorder) as connection:
        first = Sender(connection).submit(b"1")
        connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
        control = Sender(connection, window=1 << 30).submit(b"3")
        await asyncio.gather(first, control)
        assert len(recorder.writes) == 2
        assert [request.body for request in peer.requests] == [b"1", b"0123456789", b"3"]


async def test_gathered_frames_leave_with_the_answers_that_leave_few_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.transport.coalescer.GATHER_SECONDS", 30.0)
    asked: list[RemotingCommand] = []

    def keep(link: Link, request: RemotingCommand) -> None:
        asked.append(request)

    recorder = Recorder()
    async with Peer(keep) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection)
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


async def test_frames_gathered_before_a_pause_leave_at_its_end() -> None:
    recorder = Recorder()
    async with Peer(silence) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection)
        futures = [sender.submit(b"1"), sender.submit(b"2")]
        connection.pause_writing()  # uvloop calls it some time after the write
        await spin(3)
        assert len(recorder.writes) == 1
        connection.resume_writing()
        assert len(recorder.writes) == 2
        await until(lambda: [request.body for request in peer.requests] == [b"1", b"2"])
        for future in futures:
            future.cancel()


async def test_large_bodies_are_handed_over_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_async.transport.coalescer.WRITELINES_PAUSES", True)
    body = bytes(40_000)
    recorder = Recorder()
    async with Peer(stored) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection)
        peer.answer = lambda link, request: link.reply(request)
        await asyncio.gather(*[sender.submit(body) for _ in range(2)])
        for parts in recorder.writes:
            assert isinstance(parts, list)
            assert parts[-1] is body


@pytest.mark.usefixtures("wide_window")
@pytest.mark.parametrize(("size", "largest"), [(10, 64 * 400), (1000, 64 * 1400), (5000, 64 * 1024 + 6000)])
async def test_a_long_burst_does_not_wait_for_the_loop_as_a_whole(size: int, largest: int) -> None:
    """64 frames, or 64 KiB of large ones, are enough for a write."""
    body = bytes(size)
    recorder = Recorder()
    async with Peer(silence, keep=False) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection, timeout=60)
        futures = [sender.submit(body) for _ in range(300)]
        assert len(recorder.writes) > 4
        assert max(recorder.sizes) <= largest
        assert sum(recorder.sizes) >= 300 * size - largest
        await until(lambda: peer.received == 300)
        assert len(recorder.writes) <= 1 + -(-300 // 13)
        for future in futures:
            future.cancel()
        for opaque in sender.opaques:
            connection.requests.forget(opaque)


async def test_64_workers_share_writes() -> None:
    recorder = Recorder()
    async with Peer(stored, keep=False) as peer, connect(peer, recorder=recorder) as connection:
        sender = Sender(connection)

        async def work(number: int) -> None:
            for turn in range(50):
                reply = await sender.send(b"%d-%d" % (number, turn))
                assert reply.extFields is not None
                assert reply.extFields.msgId == f"{number}-{turn}"

        await asyncio.gather(*[work(number) for number in range(64)])
        assert peer.received == 3200
        assert len(recorder.writes) <= 3200 // 8
        assert connection.writes == len(recorder.writes)


@pytest.mark.virtual_time
@pytest.mark.parametrize("long_poll", [True, False])
@pytest.mark.parametrize("waiting", [1, 5, 100])
async def test_a_send_does_not_wait_for_answers_to_others(waiting: int, long_poll: bool) -> None:
    """Pulls wait at the broker for seconds, and a slow request says nothing about the next one."""

    def answer(link: Link, request: Any) -> None:
        if request.body != b"slow":
            stored(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        slow = [asyncio.ensure_future(connection.request(ping(b"slow"), 60, long_poll=long_poll)) for _ in range(waiting)]
        await until(lambda: peer.received == waiting)
        sender = Sender(connection, timeout=60)
        for number in range(3):
            with takes(0.0):
                await sender.send(b"%d" % number)
            await asyncio.sleep(0.01)
        reported: list[int] = []
        with takes(0.0):
            connection.requests.submit_oneway(FRAME, reported.append, 1)
            await until(lambda: peer.received == waiting + 4)
        assert len(reported) == 1
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)


async def test_nagle_is_off() -> None:
    import socket

    recorder = Recorder()
    async with Peer() as peer, connect(peer, recorder=recorder):
        sock = recorder.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
