"""Requests that the server sends to this client, and their answers."""

from __future__ import annotations

import asyncio

from rmq_async.transport import CloseReason, Connection
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RESPONSE_FLAG

from .peer import Link, Peer, echo, frame, response, silence
from .support import Sender, connect, ping, until


async def test_the_handler_answers_the_servers_requests() -> None:
    def handle(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        return response(command, code=7, body=command.body[::-1]) if command.code == 40 else None

    async with Peer(silence) as peer, connect(peer, on_request=handle) as connection:
        link = await peer.accepted()
        link.ask(RemotingCommand(code=40, opaque=5, body=b"abc"))
        link.ask(RemotingCommand(code=41, opaque=6))
        link.ask(RemotingCommand(code=40, opaque=7, flag=2, body=b"abc"))
        link.ask(RemotingCommand(code=40, opaque=8, body=b"xy"))
        await until(lambda: len(link.requests) == 2)
        await asyncio.sleep(0.01)
        assert [(a.opaque, a.code, a.body, a.flag) for a in link.requests] == [
            (5, 7, b"cba", RESPONSE_FLAG),
            (8, 7, b"yx", RESPONSE_FLAG),
        ]
        assert connection.is_open


async def test_unknown_requests_are_answered_as_not_supported_unless_one_way() -> None:
    async with Peer(silence) as peer, connect(peer):
        link = await peer.accepted()
        link.ask(RemotingCommand(code=12345, opaque=5))
        link.ask(RemotingCommand(code=12345, opaque=6, flag=2))
        link.ask(RemotingCommand(code=12345, opaque=7))
        await until(lambda: len(link.requests) == 2)
        assert [(answer.opaque, answer.code) for answer in link.requests] == [(5, 3), (7, 3)]
        assert "12345" in (link.requests[0].remark or "")


async def test_a_request_of_the_server_with_an_opaque_of_ours_is_no_answer() -> None:
    def answer(link: Link, request: RemotingCommand) -> None:
        link.ask(RemotingCommand(code=40, opaque=request.opaque))
        link.reply(request)

    async with Peer(answer) as peer, connect(peer) as connection:
        assert (await connection.request(ping(b"m"), 1)).body == b"m"
        sent = Sender(connection).submit(b"s")
        assert (await sent).code == 0
        await until(lambda: len(peer.requests) == 4)


async def test_a_handler_that_raises_is_reported_and_answered(loop_errors: list[dict[str, object]]) -> None:
    def handle(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        if command.body == b"unencodable":
            return response(command, remark="\ud800")
        raise ZeroDivisionError("a bug")

    async with Peer() as peer, connect(peer, on_request=handle) as connection:
        link = await peer.accepted()
        link.ask(RemotingCommand(code=40, opaque=5))
        link.ask(RemotingCommand(code=40, opaque=6, flag=2))
        link.ask(RemotingCommand(code=40, opaque=7, body=b"unencodable"))
        assert (await connection.request(ping(b"m"), 1)).body == b"m", "the connection lives on"
        await until(lambda: len(link.requests) == 3)
        answers = [request for request in link.requests if request.is_response]
        assert [(answer.opaque, answer.code, answer.remark) for answer in answers] == [
            (5, 1, "ZeroDivisionError"),
            (7, 1, "LocalProtocolError"),
        ]
    assert [type(error["exception"]).__name__ for error in loop_errors] == [
        "ZeroDivisionError", "ZeroDivisionError", "LocalProtocolError",
    ]  # fmt: skip
    loop_errors.clear()


async def test_a_handler_may_close_the_connection() -> None:
    def handle(connection: Connection, command: RemotingCommand) -> RemotingCommand | None:
        connection.close(CloseReason.DEAD)
        return response(command)

    async with Peer() as peer, connect(peer, on_request=handle) as connection:
        link = await peer.accepted()
        link.write(b"".join(frame(RemotingCommand(code=40, opaque=opaque)) for opaque in range(3)))
        await connection.closed
        await asyncio.wait([link.lost])
        assert link.requests == []


async def test_a_peer_that_asks_and_does_not_read_is_cut_off() -> None:
    asked = frame(RemotingCommand(code=12345, opaque=5)) * 5000
    async with Peer(reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        for _ in range(60):
            link.write(asked)
            await asyncio.sleep(0)
            if connection.closed.done():
                break
            assert connection.buffered_bytes < 8 << 20
        await asyncio.wait_for(connection.closed, 10)
        assert connection.close_reason is CloseReason.NOT_READING


async def test_an_answer_to_the_server_waits_behind_our_own_back_pressure() -> None:
    async with Peer(echo, reading=False) as peer, connect(peer) as connection:
        link = await peer.accepted()
        reported: list[int] = []
        oneway = frame(RemotingCommand(code=10, flag=2, body=bytes(100_000)))
        for number in range(100):
            connection.requests.submit_oneway(oneway, reported.append, number)
        await until(lambda: not connection.requests.takes_oneways())
        assert connection.buffered_bytes > 4 << 20
        link.ask(RemotingCommand(code=12345, opaque=5))
        await asyncio.sleep(0.02)
        assert connection.is_open
        link.transport.resume_reading()
        await until(lambda: len(link.requests) == 101)
        assert sorted(reported) == list(range(100))
