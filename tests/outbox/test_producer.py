"""The producer of an outbox: started and stopped with it, or left to its user."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import ClientStateError, ForkedError, Message, Producer, WrongLoopError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox
from rmq_async.producer import ProducerState

from .support import Sessions, on_sqlite, rows, settled, until


async def test_producer_that_runs_elsewhere_is_refused(tmp_path: Path) -> None:
    """On another loop and in a forked child: no row counts an attempt that could not be made."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db", poolclass=NullPool)

    async def refused(producer: Producer, error: type[Exception]) -> None:
        outbox = Outbox(engine, producer)
        await outbox.create_table()
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x"))
        for call in (outbox.start, outbox.relay_once):
            with pytest.raises(error):
                await call()
        assert {row["attempts"] for row in await rows(engine, "rmq_outbox")} == {0}

    async with EmbeddedRocketMQ() as server, Producer("orders", namesrv=server.namesrv) as producer:
        await asyncio.to_thread(asyncio.run, refused(producer, WrongLoopError))
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(refused(producer, ForkedError))
                os._exit(17)
            finally:
                os._exit(1)
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(status) == 17


@on_sqlite
async def test_a_producer_that_is_new_is_started_and_stopped_with_the_outbox(
    engine: AsyncEngine, table: str, server: EmbeddedRocketMQ, sessions: Sessions
) -> None:
    producer = Producer("orders", namesrv=server.namesrv)
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    for count in (1, 2):
        async with outbox:
            async with sessions.begin() as session:
                await outbox.add(session, Message("T", b"x"))
            assert (await settled(outbox)).sent == count
        assert producer.state is ProducerState.STOPPED


@on_sqlite
async def test_a_producer_that_runs_is_left_running(outbox: Outbox, producer: Producer) -> None:
    await outbox.stop()
    assert producer.state is ProducerState.RUNNING


@on_sqlite
async def test_the_last_of_two_outboxes_stops_their_producer(
    engine: AsyncEngine, table: str, server: EmbeddedRocketMQ, sessions: Sessions
) -> None:
    producer = Producer("orders", namesrv=server.namesrv)
    first, second = (Outbox(engine, producer, table=table, poll_interval=0.02) for _ in range(2))
    await first.create_table()
    async with first:
        async with second:
            await until(lambda: producer.state is ProducerState.RUNNING)
        async with sessions.begin() as session:
            await first.add(session, Message("T", b"x"))
        assert (await settled(first)).sent == 1
    assert producer.state is ProducerState.STOPPED


@on_sqlite
async def test_name_servers_that_are_away_at_the_start_are_waited_for(
    engine: AsyncEngine, table: str, server: EmbeddedRocketMQ, sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    await server.stop()
    producer = Producer("orders", namesrv=server.namesrv, request_timeout=0.2)
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        await until(lambda: "producer cannot start and tries again" in caplog.text)
        assert (await outbox.status()).pending == 1
        await server.start()
        assert (await settled(outbox)).sent == 1


@on_sqlite
async def test_an_outbox_whose_producer_never_started_stops_at_once(engine: AsyncEngine, table: str) -> None:
    producer = Producer("orders", namesrv="127.0.0.1:1", request_timeout=5.0)
    outbox = Outbox(engine, producer, table=table)
    await outbox.create_table()
    async with asyncio.timeout(60):
        async with outbox:
            await asyncio.sleep(0.05)
    assert producer.state is not ProducerState.RUNNING


@on_sqlite
async def test_a_producer_that_its_user_stops_and_starts_goes_on(
    outbox: Outbox, producer: Producer, sessions: Sessions
) -> None:
    await producer.stop()
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"x"))
    await asyncio.sleep(0.1)
    assert (await outbox.status()).pending == 1
    with pytest.raises(ClientStateError, match="is stopped"):
        await outbox.relay_once()
    await producer.start()
    assert (await settled(outbox)).sent == 1


@on_sqlite
async def test_health_says_why_the_producer_does_not_start(engine: AsyncEngine, table: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        producer = Producer("orders", namesrv=f"127.0.0.1:{closed.getsockname()[1]}")
        outbox = Outbox(engine, producer, table=table)
        await outbox.create_table()
        async with outbox:
            await until(lambda: "last start" in producer.health().problems[0].text)
            health = producer.health()
            assert not health.ready
            assert [problem.code for problem in health.problems] in (["not_started"], ["starting"])
            text = health.problems[0].text
            assert text.startswith(f"producer orders is {health.state.value}; its last start failed: no name server answered: ")
            assert "Connection refused" in text
