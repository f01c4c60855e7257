"""What an outbox has sent itself, and whether anything is left that can be sent."""

from __future__ import annotations

from typing import Any

from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from .support import settled, store_of


async def test_an_outbox_counts_what_it_has_sent_and_not_what_others_have(
    engine: AsyncEngine, server: EmbeddedRocketMQ, table: str
) -> None:
    async with Producer("g", namesrv=server.namesrv) as producer:
        outbox, other = (Outbox(engine, producer, table=table, poll_interval=0.05) for _ in range(2))
        await outbox.create_table()

        async def add(count: int) -> None:
            async with engine.begin() as connection:
                for _ in range(count):
                    await other.add(connection, Message("T", b"x"))

        for expected in (3, 6):  # started twice
            await add(3)
            async with outbox:
                await settled(outbox)
                assert outbox.sent_here == expected
            assert outbox.sent_here == expected
        await add(2)
        assert await other.relay_once() == 2
        assert (outbox.sent_here, other.sent_here) == (6, 2)


async def test_status_is_counted_by_one_statement(engine: AsyncEngine, table: str) -> None:
    """Between two of them the relay would mark a row, which were then both pending and sent."""
    outbox = Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"), table=table)
    await outbox.create_table()
    statements: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    await outbox.status()
    event.remove(engine.sync_engine, "before_cursor_execute", note)
    assert [table in statement for statement in statements] == [True]


async def test_what_is_behind_a_failed_message_of_its_key_cannot_be_sent(engine: AsyncEngine, table: str) -> None:
    outbox = Outbox(engine, Producer("g", namesrv="127.0.0.1:1"), table=table)
    await outbox.create_table()
    store = store_of(engine, table)

    async def add(topic: str, key: str | None = None) -> int:
        async with engine.begin() as connection:
            return await outbox.add(connection, Message(topic, b"x", sharding_key=key))

    async def become(state: str, *rows: int) -> None:
        async with engine.begin() as connection:
            for row in rows:
                await connection.execute(text(f"UPDATE {table} SET state = '{state}' WHERE id = {row}"))

    async def left() -> tuple[bool, int]:
        return await store.anything_to_send(), await store.behind_failed()

    assert await left() == (False, 0)
    before, failed, *_ = [await add("T", "a") for _ in range(4)]
    assert await left() == (True, 0)
    await become("FAILED", failed)
    assert await left() == (True, 2)  # the one before it
    await become("SENT", before)
    assert await left() == (False, 2)
    for topic, key in (("U", "a"), ("T", "b"), ("T", None)):
        row = await add(topic, key)
        assert await left() == (True, 2)
        await become("SENDING", row)
        assert await left() == (True, 2)
        await become("FAILED" if key is None else "SENT", row)
        assert await left() == (False, 2)
    await become("PENDING", failed)
    assert await left() == (True, 0)
