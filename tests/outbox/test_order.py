"""One sharding key of a topic leaves in the order of its rows, whatever fails and whoever sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from .support import Sessions, settled


@pytest.fixture
async def producer(server: EmbeddedRocketMQ) -> Any:
    async with Producer("orders", namesrv=server.namesrv) as started:
        yield started


@pytest.fixture
async def outbox(engine: AsyncEngine, producer: Producer, table: str) -> Any:
    made = Outbox(engine, producer, table=table, poll_interval=0.05)
    await made.create_table()
    async with made:
        yield made


async def test_a_row_that_somebody_locks_costs_no_hot_loop(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    """The rows behind it are found, taken, and given back."""
    if engine.dialect.name == "sqlite":
        pytest.skip("it locks no rows")
    outbox = Outbox(engine, producer, table=table, poll_interval=0.2, batch_size=2)
    await outbox.create_table()
    async with sessions.begin() as session:
        for number in range(3):
            await outbox.add(session, Message("T", b"%d" % number, sharding_key="k"))
    claim, claims = outbox._store.claim, 0

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal claims
        claims += 1
        return await claim(*given, **more)

    outbox._store.claim = counted  # type: ignore[method-assign]
    async with engine.begin() as connection:
        await connection.execute(text(f"SELECT 1 FROM {table} ORDER BY id LIMIT 1 FOR UPDATE"))
        await outbox.start()
        await asyncio.sleep(0.5)
        assert not server.messages("T")
        assert 0 < claims < 20
    await settled(outbox)
    await outbox.stop()
    assert first_seen(server) == {"k": [b"0", b"1", b"2"]}


def first_seen(server: EmbeddedRocketMQ, topic: str = "T") -> dict[str | None, list[bytes]]:
    """Bodies by sharding key, in the order in which they were stored first."""
    found: dict[str | None, list[bytes]] = {}
    for message in server.messages(topic):
        bodies = found.setdefault(message.sharding_key, [])
        if message.body not in bodies:
            bodies.append(message.body)
    return found


async def test_what_is_added_first_and_committed_last_is_sent_first_where_both_wait(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, server: EmbeddedRocketMQ
) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("one writer at a time")
    async with sessions() as first, sessions() as second:
        await outbox.add(first, Message("T", b"1", sharding_key="k"))
        await outbox.add(second, Message("T", b"2", sharding_key="k"))
        relay = outbox._relay
        assert relay is not None
        relay.sending.room.clear()  # it is busy meanwhile
        await second.commit()
        await first.commit()
        relay.sending.room.set()
    await settled(outbox)
    assert first_seen(server) == {"k": [b"1", b"2"]}
