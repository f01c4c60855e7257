"""What a relay takes from the table, when, and what becomes of it."""

from __future__ import annotations

import sqlite3
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from .support import Sessions, rows, settled, until


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> Any:
    async with Producer("orders", namesrv=server.namesrv) as started:
        yield started


def bodies(server: EmbeddedRocketMQ, topic: str = "T") -> list[bytes]:
    return sorted(message.body for message in server.messages(topic))


async def test_what_could_not_be_written_for_longer_than_a_lease_is_not_sent_again(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02, lease=0.8)
    await outbox.create_table()
    record, until_when = outbox._store.record, monotonic() + 1.2

    async def away(*outcomes: Any) -> None:
        if monotonic() < until_when:
            raise OSError("away")
        await record(*outcomes)

    outbox._store.record = away  # type: ignore[method-assign]
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"keyed", sharding_key="k"))
            await outbox.add(session, Message("T", b"loose"))
        assert (await settled(outbox)).sent == 2
    assert bodies(server) == [b"keyed", b"loose"]


async def test_a_row_whose_lease_ends_while_it_is_handed_over_is_sent_once(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02, lease=0.8)
    await outbox.create_table()
    owned = outbox._store.owned

    async def slow(*given: Any) -> Any:
        await until(lambda: bool(server.messages("T")))
        return await owned(*given)

    outbox._store.owned = slow  # type: ignore[method-assign]
    server.delay(0.15)
    async with outbox:
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x"))
        assert (await settled(outbox)).sent == 1
    assert bodies(server) == [b"x"]
    assert (await rows(engine, table))[0]["attempts"] == 1


async def test_a_row_that_holds_no_message_fails_alone(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    async with sessions.begin() as session:
        bad = await outbox.add(session, Message("T", b"bad", properties={"a": "b"}))
        await outbox.add(session, Message("T", b"good"))
        await session.execute(text(f"UPDATE {table} SET properties = 'no JSON' WHERE id = {bad}"))
    async with outbox:
        status = await settled(outbox)
    assert (status.sent, status.failed) == (1, 1)
    assert bodies(server) == [b"good"]
    assert "JSON is malformed" in (await rows(engine, table))[0]["last_error"]


async def test_a_large_window_is_not_too_large_for_sqlite(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions
) -> None:
    outbox = Outbox(engine, producer, table=table, batch_size=10_000)
    await outbox.create_table()
    async with sessions.begin() as session:
        ids = [await outbox.add(session, Message("T", b"x", sharding_key="k")) for _ in range(5)]
    if engine.dialect.name == "sqlite":

        def as_it_comes(connection: Any, _: Any) -> None:
            connection.driver_connection._conn.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 32_766)

        event.listen(engine.sync_engine, "connect", as_it_comes)
    in_hand = list(range(10**6, 10**6 + 40_000))
    assert await outbox._store.blocked(ids[3:], in_hand) == ids[3:]
    assert await outbox._store.blocked(ids[3:], in_hand + ids) == []
