"""Requests and their answers: in any order, form and number."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from rmq_async.errors import RemoteProtocolError
from rmq_async.transport import CloseReason
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RESPONSE_FLAG, ResponseCode, SerializeType
from rmq_protocol.send_codec import FIRST_OPAQUE, LAST_OPAQUE

from ..support.fakes import Link, Peer, echo, frame, response, silence, stored
from .support import Sender, connect, ping, rss

pytestmark = pytest.mark.interpreters


async def test_answers_in_any_order_reach_their_own_request() -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    requests: list[RemotingCommand] = []

    def answer(link: Link, request: RemotingCommand) -> None:
        requests.append(request)
        if len(requests) == 1000:
            random.Random(seed).shuffle(requests)
            for other in requests:
                echo(link, other)

    async with Peer(answer) as peer, connect(peer) as connection:
        bodies = [b"%d" % number for number in range(1000)]
        answers = await asyncio.gather(*[connection.request(ping(body), 60) for body in bodies])
        assert [answer.body for answer in answers] == bodies
        assert connection.strays == 0


@pytest.mark.parametrize("form", list(SerializeType))
@pytest.mark.parametrize("own", list(SerializeType))
async def test_answers_are_read_in_either_form_after_any_request(own: SerializeType, form: SerializeType) -> None:
    async with Peer(form=form) as peer, connect(peer, serialize_type=own) as connection:
        answer = await connection.request(ping(b"x"), 60)
        assert (answer.code, answer.body) == (0, b"x")
        peer.answer = stored
        reply = await Sender(connection).send(b"id-1")
        assert reply.extFields is not None
        assert (reply.extFields.msgId, reply.extFields.queueOffset) == ("id-1", 7)


async def test_any_response_code_is_an_answer() -> None:
    def refuse(link: Link, request: RemotingCommand) -> None:
        link.reply(request, code=ResponseCode.SYSTEM_BUSY, remark="too busy")

    async with Peer(refuse) as peer, connect(peer) as connection:
        answer = await connection.request(ping(), 60)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "too busy")
        reply = await Sender(connection).send(b"m")
        assert (reply.code, reply.remark, reply.extFields) == (ResponseCode.SYSTEM_BUSY, "too busy", None)


async def test_a_send_and_a_general_request_each_get_their_kind_of_answer() -> None:
    async with Peer(stored) as peer, connect(peer) as connection:
        sent = Sender(connection).submit(b"first")
        general = await connection.request(ping(b"second"), 60)
        assert general.ext_fields == {"msgId": "second", "queueId": "1", "queueOffset": "7"}
        reply = await sent
        assert reply.extFields is not None
        assert reply.extFields.msgId == "first"


async def test_a_send_reply_with_garbage_fails_that_send_alone() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        if request.body == b"bad":
            link.reply(request, body=b"", ext_fields={"queueId": "seven"})
        else:
            stored(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        sender = Sender(connection)
        bad, good = sender.submit(b"bad"), sender.submit(b"good")
        with pytest.raises(RemoteProtocolError, match="queueId") as caught:
            await bad
        assert caught.value.maybe_stored
        assert caught.value.address == peer.address
        assert (await good).code == 0
        assert connection.is_open


async def test_a_send_reply_may_have_a_body_or_no_fields() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        link.reply(request, body=b"unasked" if request.body == b"1" else b"")

    async with Peer(answer) as peer, connect(peer) as connection:
        sender = Sender(connection)
        for body in (b"1", b"2"):
            reply = await sender.send(body)
            assert (reply.code, reply.extFields) == (0, None)


async def test_a_second_answer_to_the_same_request_is_dropped() -> None:
    def twice(link: Link, request: RemotingCommand) -> None:
        link.reply(request, code=0)
        link.reply(request, code=1)

    async with Peer(twice) as peer, connect(peer) as connection:
        for number in range(10):
            assert (await connection.request(ping(b"%d" % number), 60)).code == 0
        assert connection.strays == 10


async def test_strays_are_counted_and_leave_no_memory() -> None:
    burst = b"".join(
        frame(RemotingCommand(code=0, opaque=FIRST_OPAQUE + 5000 + number, flag=RESPONSE_FLAG, remark="x" * 50))
        for number in range(5000)
    )

    def flood(link: Link, request: RemotingCommand) -> None:
        for _ in range(10):
            link.write(burst)
        echo(link, request)

    async with Peer(flood) as peer, connect(peer) as connection:
        await connection.request(ping(b"warm"), 60)
        await connection.request(ping(b"warm"), 60)
        before = rss()
        await connection.request(ping(b"1"), 60)
        await connection.request(ping(b"2"), 60)
        assert connection.strays == 200_000
        assert connection.pending == 0
        assert rss() - before < 12 << 20, "100,000 of them, kept, would be five times as much"


async def test_unknown_opaques_of_any_kind_harm_no_request() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        for opaque in (0, -1, 1, 0x7FFFFFFF, -0x80000000, request.opaque + 1):
            link.reply(request, opaque=opaque)
        echo(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        assert (await connection.request(ping(b"mine"), 60)).body == b"mine"
        assert connection.strays == 6


async def test_opaques_wrap_within_width() -> None:
    async with Peer() as peer, connect(peer) as connection:
        connection.requests.opaques = iter(range(LAST_OPAQUE - 1, LAST_OPAQUE + 1))  # the last two
        answers = await asyncio.gather(*[connection.request(ping(b"%d" % number), 60) for number in range(5)])
        assert [answer.opaque for answer in answers] == [
            LAST_OPAQUE - 1, LAST_OPAQUE, FIRST_OPAQUE, FIRST_OPAQUE + 1, FIRST_OPAQUE + 2,
        ]  # fmt: skip


@contextmanager
def no_scan() -> Iterator[None]:
    """Fails when the block asks a table for all that is in it."""
    scans: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument.__name__ in ("items", "values", "keys"):
            scans.append(argument.__qualname__)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert not scans


async def test_oldest_request_of_owner_found_without_scan() -> None:
    async with Peer(silence) as peer, connect(peer) as connection:
        others, mine = Sender(connection), Sender(connection)
        sent = [others.submit(b"") for _ in range(50)]
        assert connection.requests.oldest_of(mine) == (0, others.opaques[-1])
        since = others.opaques[-1]
        with no_scan():
            assert connection.requests.oldest_of(mine, since) == (0, since)
        sent += [mine.submit(b""), others.submit(b""), mine.submit(b"")]
        first, second = mine.opaques
        with no_scan():
            assert connection.requests.oldest_of(mine, since) == (first, second)
            assert connection.requests.oldest_of(mine, first) == (first, second)
            connection.requests.forget(first)
            assert connection.requests.oldest_of(mine, first) == (second, second)
            connection.requests.forget(second)
            assert connection.requests.oldest_of(mine, second) == (0, second)
        connection.requests.opaques = iter(())  # they begin anew
        sent.append(mine.submit(b""))
        assert connection.requests.oldest_of(mine, second) == (mine.opaques[-1],) * 2
        connection.close(CloseReason.LOCAL)
        await asyncio.gather(*sent[:50], sent[51], sent[53], return_exceptions=True)


async def test_the_callers_command_is_not_touched() -> None:
    command = ping(b"body")
    async with Peer() as peer, connect(peer) as connection:
        await connection.request(command, 60)
        assert command == ping(b"body")
        assert peer.requests[0].body == b"body"


async def test_frames_that_dribble_in_are_put_together() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        link.dribble(frame(response(request)), 0.0)

    async with Peer(answer) as peer, connect(peer) as connection:
        assert (await connection.request(ping(b"drop by drop"), 60)).body == b"drop by drop"


async def test_large_bodies_pass_both_ways() -> None:
    body = random.randbytes(4 << 20)
    async with Peer() as peer, connect(peer) as connection:
        answers = await asyncio.gather(*[connection.request(ping(body), 60) for _ in range(4)])
        assert all(answer.body == body for answer in answers)


async def test_the_local_address_is_known() -> None:
    async with Peer() as peer, connect(peer) as connection:
        assert connection.local_ip == "127.0.0.1"
        assert connection.is_open
        assert "ready" in repr(connection)
