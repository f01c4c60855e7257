"""The window of unanswered sends: what is held back, for how long, and what passes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async.errors import RequestTimeoutError
from rmq_async.transport import CloseReason
from rmq_protocol.constants import SerializeType

from ..support.fakes import Link, Peer, echo, silence, stored
from .support import FRAME, Sender, bytes_frame, connect, ping, spin, until

pytestmark = pytest.mark.usefixtures("each_way_on_one_loop")


async def test_sends_above_the_window_wait_for_answers_in_order() -> None:
    requests: list[Any] = []
    async with Peer(lambda link, request: requests.append(request)) as peer, connect(peer) as connection:
        sender = Sender(connection, window=4)
        futures = [sender.submit(b"%d" % number) for number in range(10)]
        assert (connection.requests.in_flight, connection.pending) == (4, 10)
        for answered in range(10):
            left, seen = 10 - answered, min(10, answered + 4)
            await until(lambda left=left, seen=seen: (connection.pending, len(requests)) == (left, seen))
            await asyncio.sleep(0.002)
            assert len(requests) == seen
            assert connection.requests.in_flight == min(4, left)
            peer.link.reply(requests[answered])
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


@pytest.mark.virtual_time
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
        assert (connection.requests.in_flight, connection.pending) == (1, 2)
        peer.answer = stored
        peer.link.reply(held[0])
        await asyncio.gather(tasks[0], tasks[3])
        assert [request.body for request in peer.requests] == [b"0", b"3"]


async def test_a_cancelled_held_send_lets_the_one_way_frame_behind_it_go() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1)
        first = sender.submit(b"0")
        held = asyncio.ensure_future(sender.send(b"1"))
        await until(lambda: peer.received == 1 and connection.pending == 2)
        connection.requests.submit_oneway(FRAME, lambda cost: None, 1)
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
        peer.answer = lambda link, request: link.reply(request) if request.body[1:] else stored(link, request)
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
        polls = [asyncio.ensure_future(connection.request(ping(b"poll"), 60, long_poll=True)) for _ in range(5)]
        await until(lambda: peer.received == 5)
        sender = Sender(connection, window=2)
        futures = [sender.submit(b"%d" % number) for number in range(10)]
        assert connection.requests.in_flight == 7, "five polls and a window of two"
        await asyncio.gather(*futures)
        polls[0].cancel()
        await asyncio.wait(polls[:1])
        assert (await sender.send(b"m")).code == 0
        for poll in polls:
            poll.cancel()
        await asyncio.wait(polls)
        assert connection.requests.in_flight == 0


@pytest.mark.virtual_time
async def test_control_requests_pass_the_sends_that_are_held() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        sender = Sender(connection, window=1, timeout=0.3)
        futures = [sender.submit(b"%d" % number) for number in range(5)]
        peer.answer = lambda link, request: echo(link, request) if request.body == b"control" else None
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
        assert (connection.requests.in_flight, connection.pending) == (1, 5)
        peer.answer = lambda link, request: link.reply(request) if request.body == b"control" else None
        link.transport.resume_reading()
        await control
        assert [request.body for request in peer.requests[1:]] == [b"control"], "the window is still taken by the large one"
        peer.answer = stored
        link.reply(peer.requests[0])
        await asyncio.gather(filler, *held)


async def test_a_cancelled_control_request_held_by_a_pause_never_leaves() -> None:
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        connection.requests.submit_oneway(bytes_frame(8 << 20), lambda cost: None, 1)
        await until(lambda: not connection.requests.takes_oneways())
        tasks = [asyncio.ensure_future(connection.request(ping(b"%d" % number), 5)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert (connection.pending, connection.requests.in_flight) == (2, 0)
        link.transport.resume_reading()
        await asyncio.gather(tasks[0], tasks[2])
        assert [request.body for request in peer.requests[1:]] == [b"0", b"2"]
