"""Starting and stopping: nothing stays taken, nothing stays behind, and a database or a cluster may be away."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import ConfigError, ForkedError, Message, Producer, WrongLoopError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox
from rmq_async.outbox.relay import is_owned
from rmq_async.outbox.store import Store
from rmq_async.producer import ProducerState

from .support import Sessions, on_postgresql, on_sqlite, relay_of, rows, settled, until


async def states(engine: AsyncEngine, table: str) -> list[tuple[str, str | None]]:
    return [(row["state"], row["owner"]) for row in await rows(engine, table)]


# -- what a stop leaves


@pytest.mark.parametrize("method", ["owned", "body"])
@on_sqlite
async def test_a_stop_gives_back_what_the_database_was_asked_about(
    method: str,
    outbox: Outbox,
    sessions: Sessions,
    engine: AsyncEngine,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    async def never(*_: Any) -> Any:
        asked.set()
        await asyncio.sleep(30)

    monkeypatch.setattr(Store, method, never)
    size = 100_000 if method == "body" else 10
    if method == "owned":
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x" * size))
    else:  # claimed without its body
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x" * size))
    await asked.wait()
    await outbox.stop(0.0)  # waits a second for the last outcomes, and gives the row back then
    assert await states(engine, table) == [("PENDING", None)]


@on_sqlite
async def test_a_stop_gives_back_what_it_had_no_time_to_begin(
    outbox: Outbox,
    sessions: Sessions,
    engine: AsyncEngine,
    table: str,
    server: EmbeddedRocketMQ,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owned = Store.owned

    async def last(*given: Any) -> Any:
        found = await owned(*given)
        stopping.append(asyncio.create_task(outbox.stop(0.0)))
        return found

    stopping: list[asyncio.Task[None]] = []
    monkeypatch.setattr(Store, "owned", last)
    async with sessions.begin() as session:
        for key in (None, None, "a", "a", "b"):
            await outbox.add(session, Message("T", b"x", sharding_key=key))
    await until(lambda: bool(stopping))
    await stopping[0]
    assert await states(engine, table) == [("PENDING", None)] * 5
    assert not server.messages("T")


@on_sqlite
async def test_a_stop_gives_back_the_rest_of_a_key(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    server.delay(0.2)
    async with sessions.begin() as session:
        for _ in range(50):
            await outbox.add(session, Message("T", b"x", sharding_key="k"))
    await until(lambda: bool(server.messages("T")))
    await outbox.stop()
    assert await states(engine, table) == [("SENT", None)] + [("PENDING", None)] * 49


@on_sqlite
async def test_a_stop_gives_back_the_rest_of_a_batch_that_was_refused(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    server.fail_next(13)
    async with sessions.begin() as session:
        for _ in range(5):
            await outbox.add(session, Message("T", b"x"))
    server.delay(0.2)
    await until(lambda: bool(server.messages("T")))
    await outbox.stop(0.1)
    found = await states(engine, table)
    assert found[0][0] == "SENDING"  # its outcome is unknown
    assert found[1:] == [("PENDING", None)] * 4


async def test_what_is_committed_during_a_stop_is_given_back(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    server.delay(0.2)
    async with sessions() as session:
        await outbox.add(session, Message("T", b"late"))
        async with sessions.begin() as other:
            if engine.dialect.name == "sqlite":
                await session.rollback()  # one writer
            await outbox.add(other, Message("T", b"under way"))
        if engine.dialect.name == "sqlite":
            await outbox.add(session, Message("T", b"late"))
        await until(lambda: bool(server.messages("T")))
        stopping = asyncio.create_task(outbox.stop())
        await asyncio.sleep(0.02)
        await session.commit()
        await stopping
    assert sorted(await states(engine, table)) == [("PENDING", None), ("SENT", None)]
    assert len(server.messages("T")) == 1
    await outbox.start()
    assert (await settled(outbox)).sent == 2


@on_sqlite
async def test_a_stop_that_is_cancelled_leaves_no_task(outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    server.stall("broker-a")
    server.stall("broker-b")
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"x"))
    await until(lambda: relay_of(outbox).sending.in_hand == 1)
    before = asyncio.all_tasks()
    stopping = asyncio.create_task(outbox.stop(20.0))
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not [task.get_name() for task in asyncio.all_tasks() & before if task.get_name().startswith("rmq_async outbox")]
    server.resume("broker-a")
    server.resume("broker-b")


@on_sqlite
async def test_a_stop_that_is_cancelled_while_the_database_keeps_it_waiting_stops_the_producer(
    engine: AsyncEngine, server: EmbeddedRocketMQ, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ended, cancels = asyncio.Event(), asyncio.Event(), 0

    async def never(*_: Any, **__: Any) -> Any:
        """A driver that ends its transaction, cancelled or not."""
        nonlocal cancels
        asked.set()
        while not ended.is_set():
            try:
                await ended.wait()
            except asyncio.CancelledError:
                cancels += 1
        raise asyncio.CancelledError

    producer = Producer("orders", namesrv=server.namesrv)
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02)
    await outbox.create_table()
    monkeypatch.setattr(Store, "claim", never)
    await outbox.start()
    await asked.wait()
    stopping = asyncio.create_task(outbox.stop(0.0))
    for number in (1, 2):  # the second one at the wait for the loops that the first one has not stopped
        await until(lambda number=number: cancels == number)
        stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert producer.state is ProducerState.STOPPED
    assert not is_owned(producer)
    ended.set()
    await until(lambda: not [task for task in asyncio.all_tasks() if task.get_name().startswith("rmq_async outbox")])


# -- loops and processes


def test_outbox_starts_and_stops_twice_at_once_on_each_loop(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db", poolclass=NullPool)
    outbox = Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"))

    async def twice() -> list[str]:
        await outbox.create_table()
        await asyncio.gather(outbox.start(), outbox.start())
        shown = [repr(outbox)]
        await asyncio.gather(outbox.stop(), outbox.stop())
        return [*shown, repr(outbox)]

    for _ in range(2):
        assert asyncio.run(twice()) == ["<Outbox rmq_outbox of orders, running>", "<Outbox rmq_outbox of orders, not running>"]


def test_an_outbox_belongs_to_its_loop(tmp_path: Path) -> None:
    """One whose loop is closed under it can be started anew on another one; one that runs elsewhere is left alone."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db", poolclass=NullPool)
    outbox = Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"))

    async def begin() -> None:
        await outbox.create_table()
        await outbox.start()

    async def elsewhere() -> None:
        with pytest.raises(WrongLoopError, match="another event loop"):
            await outbox.start()
        with pytest.raises(WrongLoopError, match="another event loop"):
            await outbox.stop()

    with asyncio.Runner() as first:
        first.run(begin())
        old = relay_of(outbox)
        with asyncio.Runner() as second:
            second.run(elsewhere())
        assert relay_of(outbox) is old

    async def again() -> None:
        await outbox.start()
        assert relay_of(outbox) is not old
        await outbox.stop()

    asyncio.run(again())


def test_a_child_process_is_refused(tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db", poolclass=NullPool)
    outbox = Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"))

    async def begin() -> None:
        await outbox.create_table()
        await outbox.start()

    async def in_the_child() -> None:
        with pytest.raises(ForkedError):
            await outbox.start()

    with asyncio.Runner() as runner:
        runner.run(begin())
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(in_the_child())
                os._exit(17)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
        runner.run(outbox.stop())


# -- a database that is away


@on_postgresql
async def test_connections_that_are_cut_are_made_anew(
    outbox: Outbox, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    cut = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL")
    users = create_async_engine(engine.url, poolclass=NullPool)  # whose sessions never meet a dead connection
    for number in range(5):
        async with users.begin() as connection:
            await outbox.add(connection, Message("T", b"%d" % number, sharding_key="k"))
        async with users.begin() as connection:
            await connection.execute(cut)

    async def all_sent() -> bool:
        async with users.begin() as connection:
            return await connection.scalar(text(f"SELECT count(*) FROM {table} WHERE state = 'SENT'")) == 5

    await until(all_sent)
    assert sorted({message.body for message in server.messages("T")}) == [b"%d" % number for number in range(5)]


@on_postgresql
async def test_a_database_that_does_not_answer_is_asked_anew(
    outbox: Outbox, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    outbox._store.patience = 0.3  # noqa: SLF001
    async with engine.begin() as connection:
        await connection.execute(text(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"))
        await outbox.add(connection, Message("T", b"x"))
        await until(lambda: "the outbox cannot claim due rows and tries again (failed attempts: 1): " in caplog.text)
    assert (await settled(outbox)).sent == 1
    assert len(server.messages("T")) == 1


async def test_a_locked_database_is_waited_for(
    tmp_path: Path, producer: Producer, server: EmbeddedRocketMQ, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path}/locked.db"
    engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": 0.02})
    patient = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": 60.0})
    outbox = Outbox(engine, producer, poll_interval=0.02)
    await outbox.create_table()
    async with outbox:
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x"))
            await connection.exec_driver_sql("PRAGMA user_version = 1")  # a writer, for as long as it likes
            await until(lambda: "the outbox cannot claim due rows and tries again (failed attempts: 1): " in caplog.text)

        async def is_sent() -> bool:
            return [row["state"] for row in await rows(patient, "rmq_outbox")] == ["SENT"]

        await until(is_sent)
    assert len(server.messages("T")) == 1


# -- what cannot be


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"lease": 0}, "lease must be above 0 seconds, not 0"),
        ({"poll_interval": "1"}, "poll_interval must be a number of seconds"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 to 10000"),
        ({"batch_size": True}, "batch_size must be a whole number"),
        ({"stuck_attempts": 0}, "stuck_attempts must be a whole number from 1"),
        ({"stuck_after": float("nan")}, "stuck_after must be a number of seconds"),
        ({"status_interval": -1}, "status_interval must be above 0"),
        ({"stuck_period": None}, "stuck_period must be a number"),
        ({"table": ""}, "table must be the name of a table"),
        ({"table": "schema."}, "1 to 40 bytes in UTF-8"),
        ({"table": "t" * 41}, "1 to 40 bytes in UTF-8"),
        ({"on_stuck": 1}, "on_stuck must be a plain function, not 1"),
        ({"on_status": asyncio.sleep}, "on_status must be a plain function, not the coroutine function"),
        ({"producer": object()}, "producer must be a Producer, not object"),
        ({"engine": object()}, "engine must be an AsyncEngine"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], expected: str, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db")
    given = {"engine": engine, "producer": Producer("orders", namesrv="127.0.0.1:1")} | options
    with pytest.raises(ConfigError, match=expected):
        Outbox(given.pop("engine"), given.pop("producer"), **given)


@pytest.mark.parametrize("name", ["on_stuck", "on_status"])
def test_callback_that_does_not_take_one_argument_is_refused(name: str, tmp_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/service.db")
    with pytest.raises(TypeError, match=rf"{name} is called as {name}\("):
        Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"), **{name: lambda: None})  # type: ignore[arg-type]


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="a single connection"):
        Outbox(create_async_engine("sqlite+aiosqlite://"), Producer("orders", namesrv="127.0.0.1:1"))


async def test_a_table_that_is_missing_or_another_one_is_reported(engine: AsyncEngine, producer: Producer, table: str) -> None:
    outbox = Outbox(engine, producer, table=table)
    with pytest.raises(ConfigError, match=f"there is no table {table} .*; await outbox.create_table\\(\\) creates it"):
        await outbox.start()
    with pytest.raises(ConfigError, match=f"there is no table {table} .*; await outbox.create_table\\(\\) creates it"):
        async with AsyncSession(engine) as session, session.begin():
            await outbox.add(session, Message("T", b"x"))
    async with engine.begin() as connection:
        await connection.execute(text(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)"))
    with pytest.raises(
        ConfigError, match=f"table {table} lacks a column of this version .*; migrate it to the columns of outbox_table"
    ):
        await outbox.start()
    with pytest.raises(
        ConfigError, match=f"table {table} lacks a column of this version .*; migrate it to the columns of outbox_table"
    ):
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x"))
    await outbox.stop()  # harmless


async def test_starting_and_stopping_twice_is_harmless(outbox: Outbox, sessions: Sessions) -> None:
    relay = relay_of(outbox)
    await asyncio.gather(outbox.start(), outbox.start())
    assert relay_of(outbox) is relay
    await asyncio.gather(outbox.stop(), outbox.stop())
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"x"))
    await asyncio.gather(outbox.start(), outbox.start())
    assert (await settled(outbox)).sent == 1
    with pytest.raises(ConfigError, match="timeout must be at least 0 seconds"):
        await outbox.stop(-1.0)
