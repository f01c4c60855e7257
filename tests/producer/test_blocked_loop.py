"""A loop that stood still for seconds: what has been answered meanwhile is not called late."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

import pytest

from rmq_async import Producer, errors
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing import ThreadedRocketMQ
from rmq_async.transport import Connection
from rmq_async.transport.connection import unread

from ..support.fakes import TOPIC, Cluster
from ..support.instances import client_of
from .support import message, messages, outcomes, producer, spin, timed, until

ANSWER = 150
"""Bytes of an answer to a send, at least."""


@pytest.mark.parametrize("wide", [True, False])
async def test_seconds_during_sends_are_no_timeout(
    wide: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Answers of 200 sends, of every kind, come while the loop stands still; their budget is over when it goes on.

    A real loop is blocked, until they are in its sockets: whether it reads these or looks at its timers first is what counts.
    Sends that wait for the window of a new connection have their time, too: it could not open."""
    if wide:
        request.getfixturevalue("wide_window")
    transports: dict[Connection, asyncio.Transport] = {}
    made = Connection.connection_made

    def noted(connection: Connection, transport: asyncio.Transport) -> None:
        transports[connection] = transport
        made(connection, transport)

    monkeypatch.setattr(Connection, "connection_made", noted)
    with ThreadedRocketMQ() as server:
        async with Producer("group", namesrv=server.namesrv, timeout=1.0) as sender:
            await sender.send(message(), timeout=60)
            server.delay(0.1, broker="broker-a")
            connection = (await client_of(sender)).pool.open[server.brokers["broker-a"]]
            began = monotonic()
            sends = [asyncio.ensure_future(sender.send(item)) for item in messages(80)]
            sends += [asyncio.ensure_future(sender.send(item, key=1)) for item in messages(20)]
            sends += [asyncio.ensure_future(sender.send_batch([item])) for item in messages(20)]
            sends += [await sender.send_async(item) for item in messages(80)]  # type: ignore[misc]
            await spin(3)
            await until(lambda: not connection.buffered_bytes)  # all frames have left
            while monotonic() < began + 1.3 or unread(transports[connection]) < ANSWER * connection.requests.in_flight:
                assert monotonic() < began + 60, "the answers did not come"
                time.sleep(0.01)
            results = await asyncio.gather(*sends)
        assert {result.attempts for result in results} == {1}
        assert len(server.messages(TOPIC)) == 201


@pytest.mark.virtual_time
@pytest.mark.parametrize(("number", "most"), [(10, 0.1), (300, 1.2)])
async def test_what_is_not_answered_is_late_all_the_same(number: int, most: float) -> None:
    """Of 300 sends most wait for the window of the connection, and have a second more."""
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, timeout=0.3, stop_timeout=0) as sender:
        await sender.send(message())
        server.stall()
        sends = [asyncio.ensure_future(sender.send(item)) for item in messages(number)]
        await asyncio.sleep(0.02)
        time.sleep(5.0)
        with timed(most=most):
            results = await outcomes(*sends)
        assert {type(result) for result in results} == {errors.RequestTimeoutError}
        server.resume()


@pytest.mark.virtual_time
async def test_unanswered_call_beside_busy_ones(cluster: Cluster) -> None:
    """Answers keep coming: no reason to put off, after a block, a call whose answer is not among those that waited."""
    stored = cluster.a.answer
    cluster.a.answer = lambda link, sent: None if sent.body == b"silent" else stored(link, sent)
    async with producer(cluster, stop_timeout=0) as sender:
        over = False

        async def busy() -> None:
            while not over:
                await sender.send(message())

        others = [asyncio.ensure_future(busy()) for _ in range(4)]
        for _ in range(3):
            call = asyncio.ensure_future(sender.send(message(b"silent"), timeout=0.2))
            await asyncio.sleep(0.15)
            time.sleep(0.25)
            with timed(most=0.0):
                assert isinstance((await outcomes(call))[0], errors.RequestTimeoutError)
        over = True
        await asyncio.gather(*others)


@pytest.mark.virtual_time
async def test_a_blocked_loop_while_the_route_and_the_connection_are_made() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, timeout=0.6) as sender:
        server.delay(0.05, broker="broker-a")
        sends = [asyncio.ensure_future(sender.send(message(), key=key)) for key in (None, 1, None, 1)]
        await asyncio.sleep(0.01)
        time.sleep(0.4)
        results = await asyncio.gather(*sends)
        assert {result.attempts for result in results} == {1}


@pytest.mark.virtual_time
async def test_many_short_blocks() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv, timeout=0.2) as sender:
        for _ in range(8):
            send = asyncio.ensure_future(sender.send(message()))
            await asyncio.sleep(0)
            time.sleep(0.05)
            await send
