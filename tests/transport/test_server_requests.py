"""Requests that the server sends to this client, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import cast

import pytest

from rmq_async.transport import CloseReason, Connection
from rmq_async.transport.server_requests import MAX_ANSWERING
from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import RESPONSE_FLAG

from ..support.fakes import Link, Peer, echo, frame, response, silence
from .support import Sender, connect, ping, pool_of, until


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
        echo(link, request)

    async with Peer(answer) as peer, connect(peer) as connection:
        assert (await connection.request(ping(b"m"), 60)).body == b"m"
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
        assert (await connection.request(ping(b"m"), 60)).body == b"m", "the connection lives on"
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
        await asyncio.wait_for(connection.closed, 60)
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


async def test_a_response_may_come_later() -> None:
    gates: dict[int, asyncio.Future[bytes]] = {}

    async def answer(command: RemotingCommand) -> RemotingCommand | None:
        body = await gates.setdefault(command.opaque, asyncio.get_running_loop().create_future())
        return response(command, body=body) if body else None

    def handle(
        connection: Connection, command: RemotingCommand
    ) -> Coroutine[None, None, RemotingCommand | None] | RemotingCommand:
        return answer(command) if command.code == 307 else response(command, body=b"now")

    async with Peer(silence) as peer, connect(peer, on_request=handle) as connection:
        link = await peer.accepted()
        for opaque in (5, 6, 7):
            link.ask(RemotingCommand(code=307, opaque=opaque))
        link.ask(RemotingCommand(code=307, opaque=8, flag=2))
        link.ask(RemotingCommand(code=40, opaque=9))
        await until(lambda: len(gates) == 4 and len(link.requests) == 1)
        for opaque, body in ((8, b"one-way"), (7, b"seven"), (6, b""), (5, b"five")):
            gates[opaque].set_result(body)
        await until(lambda: len(link.requests) == 3)
        await asyncio.sleep(0.01)
        assert [(answer.opaque, answer.body) for answer in link.requests] == [(9, b"now"), (7, b"seven"), (5, b"five")]
        assert connection.answering == ()


async def test_an_awaitable_that_raises_is_reported_and_answered(loop_errors: list[dict[str, object]]) -> None:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        await asyncio.sleep(0)
        if command.opaque == 5:
            raise ZeroDivisionError("a bug")
        if command.opaque == 6:
            raise asyncio.CancelledError
        return response(command, remark="\ud800")

    def handle(connection: Connection, command: RemotingCommand) -> Coroutine[None, None, RemotingCommand]:
        return answer(command) if command.opaque < 8 else cast("Coroutine[None, None, RemotingCommand]", 5)

    async with Peer() as peer, connect(peer, on_request=handle) as connection:
        link = await peer.accepted()
        for opaque in (5, 6, 7, 8):
            link.ask(RemotingCommand(code=307, opaque=opaque))
        await until(lambda: len(link.requests) == 4)
        assert [(answer.opaque, answer.code, answer.remark) for answer in link.requests] == [
            (8, 1, "TypeError"), (5, 1, "ZeroDivisionError"), (6, 1, "CancelledError"), (7, 1, "LocalProtocolError"),
        ]  # fmt: skip
        assert (await connection.request(ping(b"m"), 60)).body == b"m", "the connection lives on"
    assert len(loop_errors) == 4
    loop_errors.clear()


async def test_requests_beyond_the_limit_are_refused_as_busy() -> None:
    gate = asyncio.Event()
    started: list[int] = []

    async def answer(command: RemotingCommand) -> RemotingCommand:
        started.append(command.opaque)
        await gate.wait()
        return response(command)

    def handle(connection: Connection, command: RemotingCommand) -> Awaitable[RemotingCommand | None] | RemotingCommand:
        if command.code == 40:
            return response(command)
        return answer(command) if command.opaque % 2 else asyncio.ensure_future(answer(command))

    async with Peer(silence) as peer, connect(peer, on_request=handle):
        link = await peer.accepted()
        for opaque in range(MAX_ANSWERING + 2):
            link.ask(RemotingCommand(code=307, opaque=opaque))
        link.ask(RemotingCommand(code=307, opaque=98, flag=2))
        link.ask(RemotingCommand(code=40, opaque=99))
        await until(lambda: len(link.requests) == 3)
        assert [(answer.opaque, answer.code) for answer in link.requests] == [(32, 2), (33, 2), (99, 0)]
        gate.set()
        await until(lambda: len(link.requests) == MAX_ANSWERING + 3)
        assert sorted(started) == list(range(MAX_ANSWERING))


@pytest.mark.parametrize("reason", [CloseReason.LOCAL, CloseReason.DEAD])
async def test_closing_cancels_the_awaitables(reason: CloseReason) -> None:
    ended: list[int] = []

    async def answer(command: RemotingCommand) -> RemotingCommand:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(command.opaque)
        return response(command)

    async with Peer(silence) as peer, connect(peer, on_request=lambda _, command: answer(command)) as connection:
        link = await peer.accepted()
        for opaque in range(3):
            link.ask(RemotingCommand(code=307, opaque=opaque))
        await until(lambda: len(connection.answering) == 3)
        await asyncio.sleep(0)
        tasks = connection.answering
        connection.close(reason)
        await asyncio.wait(tasks)
        assert ended == [0, 1, 2]
        assert all(task.cancelled() for task in tasks)
        await asyncio.wait([link.lost])
        assert link.requests == []


async def test_an_awaitable_of_a_handler_that_closes_the_connection_is_not_run() -> None:
    async def answer(command: RemotingCommand) -> RemotingCommand:
        raise AssertionError("not run")

    def handle(connection: Connection, command: RemotingCommand) -> Coroutine[None, None, RemotingCommand]:
        connection.close(CloseReason.DEAD)
        return answer(command)

    async with Peer(silence) as peer, connect(peer, on_request=handle) as connection:
        (await peer.accepted()).ask(RemotingCommand(code=307))
        await connection.closed
        assert connection.answering == ()


async def test_closing_a_pool_waits_for_what_cancelled_awaitables_still_do() -> None:
    steps: list[str] = []

    async def answer(command: RemotingCommand) -> RemotingCommand:
        steps.append("started")
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.01)
            steps.append("ended")
        return response(command)

    async with Peer(silence) as peer, pool_of(callbacks={"on_request": lambda _, command: answer(command)}) as connections:
        await connections.connect(peer.address, 60)
        (await peer.accepted()).ask(RemotingCommand(code=307))
        await until(lambda: steps == ["started"])
        await connections.aclose()
        assert steps == ["started", "ended"]
