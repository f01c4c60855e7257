"""Inbox.first: a message is new once, in any session, and only what is committed counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from rmq_async import MessageExt
from rmq_async.errors import ConfigError, InvalidGroupError, InvalidMessageError
from rmq_async.inbox import Inbox

from ..support.databases import Sessions, on_postgresql, on_sqlite


def received(unique_id: str | None = "A1", *, offset: int = 7, **properties: str) -> MessageExt:
    given = dict(properties) if unique_id is None else {"UNIQ_KEY": unique_id, **properties}
    return MessageExt("OrderTopic", b"x", properties=given, store_host="127.0.0.1:10911", commit_log_offset=offset)


async def keys(engine: AsyncEngine, table: str) -> list[tuple[str, str]]:
    async with engine.connect() as connection:
        found = await connection.execute(text(f"SELECT consumer_group, message_key FROM {table} ORDER BY 1, 2"))
        return [(row[0], row[1]) for row in found]


async def test_first_of_a_committed_message_is_false(inbox: Inbox, sessions: Sessions) -> None:
    answers = []
    for _ in range(3):
        async with sessions.begin() as session:
            answers.append(await inbox.first(session, received()))
    assert answers == [True, False, False]


async def test_first_twice_in_a_transaction_is_true_once(inbox: Inbox, sessions: Sessions) -> None:
    async with sessions.begin() as session:
        assert [await inbox.first(session, received()), await inbox.first(session, received())] == [True, False]


async def test_first_after_a_rollback_is_true_again(inbox: Inbox, sessions: Sessions) -> None:
    with pytest.raises(RuntimeError):
        async with sessions.begin() as session:
            assert await inbox.first(session, received())
            raise RuntimeError
    async with sessions.begin() as session:
        nested = await session.begin_nested()
        assert await inbox.first(session, received())
        await nested.rollback()
        assert await inbox.first(session, received())


async def test_first_at_autocommit_is_refused(inbox: Inbox, engine: AsyncEngine, sessions: Sessions, table: str) -> None:
    """The row would stay where the effect is rolled back, and the message would count as handled."""
    made = create_async_engine(engine.url, isolation_level="AUTOCOMMIT")
    for loose in (made, engine.execution_options(isolation_level="AUTOCOMMIT")):
        async with AsyncSession(loose) as session:
            with pytest.raises(ConfigError, match=r"^an inbox requires a transaction, .* is AUTOCOMMIT; use an engine"):
                await inbox.first(session, received())
    await made.dispose()
    async with engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(ConfigError, match="AUTOCOMMIT"):
            await inbox.first(connection, received())
        async with AsyncSession(connection) as session:
            with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                await inbox.first(session, received())
    assert await keys(engine, table) == []
    async with AsyncSession(engine.execution_options(isolation_level="SERIALIZABLE")) as session, session.begin():
        assert await inbox.first(session, received())


async def test_first_of_other_groups_and_messages_is_true(
    inbox: Inbox, engine: AsyncEngine, sessions: Sessions, table: str
) -> None:
    other = Inbox(group="shipping", table=table)
    async with sessions.begin() as session:
        assert await inbox.first(session, received("A1"))
        assert await inbox.first(session, received("A2"))
        assert await other.first(session, received("A1"))
    assert await keys(engine, table) == [("billing", "A1"), ("billing", "A2"), ("shipping", "A1")]


async def test_first_on_connections_and_scoped_sessions(inbox: Inbox, engine: AsyncEngine, sessions: Sessions) -> None:
    async with engine.begin() as connection:
        assert await inbox.first(connection, received())
    scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
    async with scoped.begin():
        assert not await inbox.first(scoped, received())
    await scoped.remove()


async def test_first_of_a_message_without_unique_id_takes_the_ids_of_brokers(
    inbox: Inbox, engine: AsyncEngine, sessions: Sessions, table: str
) -> None:
    sent = received(None)
    again = received(None, offset=4711, ORIGIN_MESSAGE_ID=sent.offset_msg_id)
    async with sessions.begin() as session:
        assert [await inbox.first(session, sent), await inbox.first(session, again)] == [True, False]
    assert await keys(engine, table) == [("billing", sent.offset_msg_id)]


async def test_first_with_a_key_of_the_business(engine: AsyncEngine, sessions: Sessions, table: str) -> None:
    inbox = Inbox(group="billing", table=table, key=lambda message: message.keys[0])
    await inbox.create_table(engine)
    async with sessions.begin() as session:
        assert await inbox.first(session, received("A1", KEYS="order-17 blue"))
        assert not await inbox.first(session, received("A2", KEYS="order-17"))
        with pytest.raises(IndexError):
            await inbox.first(session, received("A3"))


@on_postgresql
async def test_first_waits_for_the_transaction_that_has_the_key(inbox: Inbox, sessions: Sessions) -> None:
    for committed in (False, True):
        async with sessions() as one, sessions() as two:
            assert await inbox.first(one, received())
            process = {"process": await two.scalar(text("SELECT pg_backend_pid()"))}
            waiting = asyncio.create_task(inbox.first(two, received()))
            async with asyncio.timeout(60):
                while not await one.scalar(text("SELECT cardinality(pg_blocking_pids(:process))"), process):
                    assert not waiting.done()
            await (one.commit() if committed else one.rollback())
            assert await asyncio.wait_for(waiting, 60) is not committed
            await two.rollback()


@on_postgresql
async def test_first_of_a_stricter_transaction_raises_what_the_database_raises(inbox: Inbox, engine: AsyncEngine) -> None:
    strict = async_sessionmaker(engine.execution_options(isolation_level="SERIALIZABLE"))
    async with strict() as one, strict() as two:
        await two.execute(text("SELECT 1"))
        assert await inbox.first(one, received())
        await one.commit()
        with pytest.raises(DBAPIError, match="could not serialize"):
            await inbox.first(two, received())


async def test_first_in_many_transactions_at_once_is_true_once(inbox: Inbox, sessions: Sessions) -> None:
    async def handle(number: int) -> bool:
        async with sessions.begin() as session:
            return await inbox.first(session, received(f"A{number % 5}"))

    answers = await asyncio.gather(*(handle(number) for number in range(20)))
    assert answers.count(True) == 5


@on_sqlite
@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", 17, None], ids=["empty", "long", "NUL", "number", "none"])
async def test_first_with_a_bad_key_raises(key: Any, engine: AsyncEngine, sessions: Sessions, table: str) -> None:
    inbox = Inbox(group="billing", table=table, key=lambda message: key)
    await inbox.create_table(engine)
    async with sessions.begin() as session:
        with pytest.raises(InvalidMessageError, match=rf"key of message A1 in inbox {table} must be a str of 1 to 255"):
            await inbox.first(session, received())


async def test_first_takes_the_longest_key_and_group(engine: AsyncEngine, sessions: Sessions, table: str) -> None:
    inbox = Inbox(group="g" * 120, table=table, key=lambda message: "\U0001f34e" * 255)
    await inbox.create_table(engine)
    async with sessions.begin() as session:
        assert await inbox.first(session, received())


@on_sqlite
async def test_first_with_wrong_arguments_raises(inbox: Inbox, sessions: Sessions) -> None:
    with pytest.raises(TypeError, match="an async_scoped_session or an AsyncConnection, not Session"):
        await inbox.first(Session(create_engine("sqlite://")), received())  # type: ignore[arg-type]
    async with sessions.begin() as session:
        with pytest.raises(TypeError, match="message must be a MessageExt, not str"):
            await inbox.first(session, "order 17")  # type: ignore[arg-type]


def test_inbox_with_bad_settings_raises() -> None:
    with pytest.raises(InvalidGroupError):
        Inbox(group="a group")
    with pytest.raises(ConfigError, match=r"table must have 1 to 40 bytes in UTF-8 \(without its schema\), not"):
        Inbox(group="g", table="t" * 41)
    with pytest.raises(ConfigError, match="key must be a plain function, not 'order'"):
        Inbox(group="g", key="order")  # type: ignore[arg-type]


@on_sqlite
async def test_inbox_of_another_database_raises(engine: AsyncEngine) -> None:
    class Elsewhere(AsyncSession):
        def get_bind(self, *_: Any, **__: Any) -> Any:
            return _Bind()

    inbox = Inbox(group="g")
    async with Elsewhere(engine) as session:
        with pytest.raises(ConfigError, match="an inbox requires PostgreSQL or SQLite, not 'mysql'"):
            await inbox.first(session, received())
        with pytest.raises(ConfigError, match="an inbox requires PostgreSQL or SQLite, not 'mysql'"):
            await inbox.purge(session, 1.0)
    with pytest.raises(ConfigError, match="engine must be an AsyncEngine"):
        await inbox.create_table(create_engine("sqlite://"))  # type: ignore[arg-type]


class _Bind:
    class dialect:
        name = "mysql"


@on_sqlite
async def test_purge_deletes_old_rows_of_its_group(inbox: Inbox, engine: AsyncEngine, sessions: Sessions, table: str) -> None:
    other = Inbox(group="shipping", table=table)
    async with sessions.begin() as session:
        for each in (inbox, other):
            assert await each.first(session, received("A1"))
        await session.execute(text(f"UPDATE {table} SET created = '2020-01-01 00:00:00.000'"))
        assert await inbox.first(session, received("A2"))
    async with sessions.begin() as session:
        assert await inbox.purge(session, 3600.0) == 1
        assert await inbox.purge(session, 3600.0) == 0
    assert await keys(engine, table) == [("billing", "A2"), ("shipping", "A1")]
    async with sessions.begin() as session:
        with pytest.raises(ConfigError, match="older_than must be at least 0 seconds, not -1"):
            await inbox.purge(session, -1)


async def test_purge_of_new_rows_is_by_the_clock_of_the_database(inbox: Inbox, sessions: Sessions) -> None:
    async with sessions.begin() as session:
        assert await inbox.first(session, received())
    async with sessions.begin() as session:
        assert await inbox.purge(session, 3600.0) == 0
        assert await inbox.purge(session, 0) == 1
    async with sessions.begin() as session:
        assert await inbox.first(session, received())


@on_sqlite
async def test_create_table_of_a_table_that_is_there_leaves_it(inbox: Inbox, engine: AsyncEngine, sessions: Sessions) -> None:
    async with sessions.begin() as session:
        assert await inbox.first(session, received())
    await inbox.create_table(engine)
    async with sessions.begin() as session:
        assert not await inbox.first(session, received())


async def test_create_table_in_memory_works(clean: None) -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    inbox = Inbox(group="billing")
    await inbox.create_table(engine)
    async with engine.begin() as connection:
        assert await inbox.first(connection, received())
    await engine.dispose()
