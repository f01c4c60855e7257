"""Frames above ``max_frame_size``: what becomes of their request, and of the others on the connection."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async.errors import ConnectionLostError, FrameTooLargeError
from rmq_async.transport.connection import DROP_UP_TO
from rmq_protocol.command import RemotingCommand
from rmq_protocol.frame import encode_frame

from ..support.fakes import Link, Peer, echo, silence
from .support import Sender, connect, ping, until

LIMIT = 4096


async def test_answer_above_max_frame_size_fails_its_request_only() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        if request.body == b"large":
            link.reply(request, body=bytes(100 * LIMIT), ext_fields={"nextBeginOffset": "7"})
        else:
            echo(link, request)

    async with Peer(answer) as peer, connect(peer, max_frame_size=LIMIT) as connection:
        calls = [connection.request(ping(body), 60) for body in (b"1", b"large", b"2", b"large", b"3")]
        first, large, second, *_, third = await asyncio.gather(*calls, return_exceptions=True)
        assert [answer.body for answer in (first, second, third)] == [b"1", b"2", b"3"]
        assert isinstance(large, FrameTooLargeError)
        assert large.size > 100 * LIMIT
        assert (large.limit, large.fields, large.address) == (LIMIT, {"nextBeginOffset": "7"}, peer.address)
        assert f"has {large.size} bytes, above max_frame_size={LIMIT}" in str(large)
        assert (large.retriable, large.maybe_stored) == (False, False)
        assert connection.is_open
        assert connection.pending == 0


async def test_send_whose_answer_is_too_large_may_be_stored() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        link.reply(request, body=bytes(2 * LIMIT))

    async with Peer(answer) as peer, connect(peer, max_frame_size=LIMIT) as connection:
        with pytest.raises(FrameTooLargeError) as caught:
            await Sender(connection).submit(b"m")
        assert caught.value.maybe_stored


async def test_answer_above_max_frame_size_without_a_request_is_dropped() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        link.reply(request, opaque=request.opaque + 1000, body=bytes(2 * LIMIT))
        echo(link, request)

    async with Peer(answer) as peer, connect(peer, max_frame_size=LIMIT) as connection:
        assert (await connection.request(ping(b"m"), 60)).body == b"m"
        assert connection.strays == 1


async def test_request_of_the_server_above_max_frame_size_is_refused() -> None:
    async with Peer(silence) as peer, connect(peer, max_frame_size=LIMIT) as connection:
        link = await peer.accepted()
        link.ask(RemotingCommand(code=309, opaque=5, body=bytes(2 * LIMIT)))
        link.ask(RemotingCommand(code=39, opaque=6, flag=2, body=bytes(2 * LIMIT)))
        link.ask(RemotingCommand(code=12345, opaque=7))
        await until(lambda: len(link.requests) == 2)
        assert [(answer.opaque, answer.code) for answer in link.requests] == [(5, 1), (7, 3)]
        assert f"above max_frame_size={LIMIT}" in (link.requests[0].remark or "")
        assert connection.is_open


@pytest.mark.parametrize(
    "first",
    [
        (DROP_UP_TO - 3).to_bytes(4) + (10).to_bytes(4),
        (2**31 - 1).to_bytes(4) + (10).to_bytes(4),
        (DROP_UP_TO - 4).to_bytes(4) + (1 << 23).to_bytes(4),
        encode_frame(0, b"no header", bytes(2 * LIMIT))[0],
    ],
    ids=["longer than is dropped", "the longest", "with a header that is too large", "with a header that cannot be read"],
)
async def test_frame_that_cannot_be_attributed_closes_the_connection(first: bytes) -> None:
    async with Peer(lambda link, request: link.write(first)) as peer, connect(peer, max_frame_size=LIMIT) as connection:
        with pytest.raises(ConnectionLostError, match=r"frame|header"):
            await connection.request(ping(b"m"), 60)
        assert not connection.is_open
