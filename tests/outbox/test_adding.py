"""What is added with a transaction leaves with it: committed, it is sent; rolled back, it never was."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import weakref
from contextlib import closing, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, text
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_scoped_session, create_async_engine
from sqlalchemy.orm import registry

from rmq_async import Admin, ConfigError, InvalidMessageError, Message, Producer, machine
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox
from rmq_async.outbox.handover import Additions

from .support import Looks, Sessions, bodies, on_sqlite, rows, settled, until


async def test_what_is_committed_is_sent_at_once(
    looks: Looks, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ, engine: AsyncEngine, table: str
) -> None:
    async with sessions.begin() as session:
        row = await outbox.add(session, Message("T", b"paid"))
        await looks.beside(engine)
        assert not server.messages("T")
    status = await settled(outbox)
    assert (status.sent, status.failed, status.oldest_age) == (1, 0, 0.0)
    (stored,) = server.messages("T")
    (kept,) = await rows(engine, table)
    assert kept["id"] == row
    assert (kept["state"], kept["attempts"], kept["owner"], kept["lease"]) == ("SENT", 1, None, None)
    assert kept["unique_id"] == stored.unique_id
    assert kept["offset_message_id"] == stored.offset_msg_id
    assert kept["queue"] == f"{stored.queue.broker_name}:{stored.queue.queue_id}"
    assert kept["queue_offset"] == stored.queue_offset


async def test_what_is_rolled_back_is_never_sent(
    looks: Looks, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    with pytest.raises(RuntimeError, match="no stock"):
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"rolled back"))
            raise RuntimeError("no stock")
    async with sessions() as session:
        await outbox.add(session, Message("T", b"closed without a commit"))
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"committed"))
    assert (await settled(outbox)).sent == 1
    await looks.more()
    assert bodies(server) == [b"committed"]


async def test_a_row_that_got_the_id_of_one_that_was_rolled_back_is_sent_in_its_place(
    looks: Looks, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    """SQLite gives such ids again, and a session that is closed reports no rollback."""
    async with sessions() as session:
        await outbox.add(session, Message("T", b"closed without a commit"))
        await session.close()
        await outbox.add(session, Message("T", b"committed"))
        await session.commit()
    await settled(outbox)
    await looks.more()
    assert bodies(server) == [b"committed"]


@on_sqlite
async def test_a_large_transaction_is_not_held_in_memory(
    engine: AsyncEngine, producer: Producer, table: str, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    outbox = Outbox(engine, producer, table=table, poll_interval=0.02, batch_size=10)
    await outbox.create_table()
    async with outbox:
        async with sessions.begin() as session:
            for number in range(100):
                await outbox.add(session, Message("T", b"%02d" % number))
            assert Additions.waiting(session.sync_session) == 40
        assert Additions.waiting(session.sync_session) == 0
        await settled(outbox)
    assert bodies(server) == [b"%02d" % number for number in range(100)]


@on_sqlite
async def test_a_session_that_is_closed_or_gone_holds_nothing(outbox: Outbox, sessions: Sessions) -> None:
    async with sessions() as session:
        for _ in range(3):
            await outbox.add(session, Message("T", b"x"))
            await session.close()
            assert Additions.waiting(session.sync_session) == 0
        gone = weakref.ref(session.sync_session)
    del session
    gc.collect()
    assert gone() is None


async def test_savepoints_count(
    looks: Looks, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ, engine: AsyncEngine
) -> None:
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"a"))
        inner = await session.begin_nested()
        await outbox.add(session, Message("T", b"rolled back"))
        deeper = await session.begin_nested()
        await outbox.add(session, Message("T", b"rolled back too"))
        await deeper.commit()
        await looks.beside(engine)
        assert not server.messages("T")
        await inner.rollback()
        async with session.begin_nested():
            await outbox.add(session, Message("T", b"b"))
    assert (await settled(outbox)).sent == 2
    assert bodies(server) == [b"a", b"b"]


async def test_a_session_serves_one_transaction_after_the_other(
    outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    async with sessions() as session:
        for number in range(3):
            await outbox.add(session, Message("T", b"%d" % number))
            await (session.rollback() if number == 1 else session.commit())
    await settled(outbox)
    assert bodies(server) == [b"0", b"2"]


async def test_a_session_inside_a_transaction_of_somebody_elses_sends_nothing_before_that_is_committed(
    looks: Looks, outbox: Outbox, engine: AsyncEngine, server: EmbeddedRocketMQ
) -> None:
    """The recipe for tests of services: the session's commit is none."""
    async with engine.connect() as connection:
        outer = await connection.begin()
        async with AsyncSession(connection) as session:
            await outbox.add(session, Message("T", b"x"))
            await session.commit()
        await looks.beside(engine)
        assert not server.messages("T")
        await outer.rollback()
    await looks.more()
    assert not server.messages("T")
    assert (await outbox.status()).pending == 0


async def test_a_connection_and_a_scoped_session_will_do(
    outbox: Outbox, engine: AsyncEngine, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    async with engine.begin() as connection:
        await outbox.add(connection, Message("T", b"core"))
    scoped = async_scoped_session(sessions, scopefunc=asyncio.current_task)
    await outbox.add(scoped, Message("T", b"scoped"))
    await scoped.commit()
    await scoped.remove()
    await settled(outbox)
    assert bodies(server) == [b"core", b"scoped"]


async def test_a_message_arrives_as_it_was_added(outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    message = Message(
        "T", bytes(range(256)) * 40, tags="päid", keys=["a", "b"], flag=-7, properties={"näme": "wert = 1"}, wait_store=False,
        sharding_key="order-17",
    )  # fmt: skip
    async with sessions.begin() as session:
        await outbox.add(session, message)
        await outbox.add(session, Message("T", b"named", unique_id="my own id"))
    await settled(outbox)
    stored = {each.body: each for each in server.messages("T")}
    found = stored[message.body]
    assert (found.tags, found.keys, found.flag, found.sharding_key) == ("päid", ("a", "b"), -7, "order-17")
    assert found.properties["näme"] == "wert = 1"
    assert not found.wait_store
    assert len(found.unique_id or "") == 32
    assert stored[b"named"].unique_id == "my own id"


@pytest.mark.parametrize("how", ["handed over", "relayed"])
async def test_lite_topics_and_priorities_arrive_in_the_order_of_their_keys(
    how: str, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ
) -> None:
    """Rows of one lite topic are sent one after the other, as rows of one sharding key are."""
    async with Admin(namesrv=server.namesrv) as admin:
        await admin.create_topic("T", attributes={"message.type": "LITE"})
    if how == "relayed":
        await outbox.stop()
    added = [Message("T", b"%d" % number, lite_topic="s", properties={"p": "1"}) for number in range(10)]
    added += [Message("T", b"urgent", priority=7), Message("T", b"keyed", sharding_key="s")]
    async with sessions.begin() as session:
        for message in added:
            await outbox.add(session, message)
    if how == "relayed":
        assert await outbox.relay_once() == 12
    await settled(outbox)
    stored = server.messages("T")
    lite = [each for each in stored if each.lite_topic is not None]
    assert [(each.lite_topic, each.body, each.user_properties) for each in lite] == [
        ("s", b"%d" % number, {"p": "1"}) for number in range(10)
    ]
    others = {each.body: (each.priority, each.sharding_key, each.lite_topic) for each in stored if each.lite_topic is None}
    assert others == {b"urgent": (7, None, None), b"keyed": (None, "s", None)}


@pytest.mark.parametrize("how", ["handed over", "relayed"])
async def test_delays_count_from_the_addition(how: str, outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    moment = datetime.now(UTC) + timedelta(hours=3)
    if how == "relayed":
        await outbox.stop()
    before = datetime.now(UTC)
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"delay", delay=3600.0))
        await outbox.add(session, Message("T", b"moment", deliver_at=moment))
        await outbox.add(session, Message("T", b"seconds", deliver_at=moment.timestamp()))
        await outbox.add(session, Message("T", b"level", delay_level=18))
        await outbox.add(session, Message("T", b"past", deliver_at=moment - timedelta(hours=4)))
    after = datetime.now(UTC)
    if how == "relayed":
        assert await outbox.relay_once() == 5
    await settled(outbox)
    await until(lambda: bodies(server) == [b"past"])
    waiting = {each.body: each.properties for each in server.messages("rmq_sys_wheel_timer")}
    due = {body: int(properties["TIMER_OUT_MS"]) / 1000 for body, properties in waiting.items()}
    assert before.timestamp() + 3599 <= due[b"delay"] <= after.timestamp() + 3601
    assert due[b"moment"] == due[b"seconds"] == pytest.approx(moment.timestamp(), abs=1.0)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("T", b""), "the body is empty"),
        (Message("no topic!", b"x"), "not allowed"),
        (Message("T", b"x" * (4 * 1024 * 1024 + 1)), "4194305 bytes"),
        (Message("T", b"x", properties={"p": "v" * 33_000}), "32767"),
        (Message("T", b"x", unique_id="u" * 256), "256 characters"),
        (Message("T", b"x", deliver_at=1e12), "year 9999"),
        (Message("T", b"x", sharding_key="".join(map(chr, range(200, 1300)))), "2200 bytes, the limit of an outbox is 2000"),
    ],
)
@on_sqlite
async def test_what_cannot_be_sent_is_refused_before_it_is_written(
    message: Message, expected: str, outbox: Outbox, sessions: Sessions
) -> None:
    async with sessions.begin() as session:
        with pytest.raises(InvalidMessageError, match=expected):
            await outbox.add(session, message)
    status = await outbox.status()
    assert (status.pending, status.sent, status.failed) == (0, 0, 0)


async def test_what_is_no_session_and_no_message_is_a_type_error(outbox: Outbox, sessions: Sessions) -> None:
    with pytest.raises(TypeError, match="session must be an AsyncSession"):
        await outbox.add(object(), Message("T", b"x"))  # type: ignore[arg-type]
    async with sessions() as session:
        with pytest.raises(TypeError, match="message must be a Message, not bytes"):
            await outbox.add(session, b"x")  # type: ignore[arg-type]


class Order:
    id: int


@pytest.mark.parametrize("name", ["orders", "{table}_orders"])
async def test_another_table_that_is_missing_is_not_taken_for_the_outbox(
    name: str, outbox: Outbox, sessions: Sessions, table: str
) -> None:
    name = name.format(table=table)
    mapped = type("Mapped", (Order,), {})
    registry().map_imperatively(mapped, Table(name, MetaData(), Column("id", Integer, primary_key=True)))
    async with sessions() as session:
        session.add(mapped(id=1))

        async def add() -> None:
            await outbox.add(session, Message("T", b"x"))
            await session.flush()  # SQLAlchemy 2.0.30 did not flush before an insert

        with pytest.raises((OperationalError, ProgrammingError), match=name):
            await add()


@on_sqlite
async def test_a_session_at_autocommit_is_refused(outbox: Outbox, engine: AsyncEngine) -> None:
    """The message would be sent where the transaction is rolled back."""
    async with AsyncSession(engine.execution_options(isolation_level="AUTOCOMMIT")) as session:
        with pytest.raises(ConfigError, match=r"^an outbox requires a transaction, .* is AUTOCOMMIT; use an engine"):
            await outbox.add(session, Message("T", b"x"))
    assert (await outbox.status()).pending == 0


async def test_ids_of_rows_are_returned_and_grow(outbox: Outbox, sessions: Sessions) -> None:
    async with sessions.begin() as session:
        ids = [await outbox.add(session, Message("T", b"%d" % number)) for number in range(5)]
    assert ids == sorted(set(ids))


@on_sqlite
async def test_unique_ids_are_all_different(outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str) -> None:
    async with sessions.begin() as session:
        for _ in range(300):
            await outbox.add(session, Message("T", b"x"))
    assert len({row["unique_id"] for row in await rows(engine, table)}) == 300


def test_unique_ids_of_loops_in_two_threads_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inbox takes two messages with one id for copies."""
    url, moment, times = f"sqlite+aiosqlite:///{tmp_path}/box.db", machine.time(), 0
    outbox = Outbox(create_async_engine(url), Producer("p", namesrv="127.0.0.1:1"), table="box")

    async def add() -> None:
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(outbox.metadata.create_all)
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x"))
        await engine.dispose()

    def time() -> float:
        nonlocal times
        times += 1
        if times == 2:  # in the middle of the first id
            other = Thread(target=asyncio.run, args=(add(),))
            other.start()
            other.join()
        return moment

    monkeypatch.setattr(machine, "time", time)
    asyncio.run(add())
    with closing(sqlite3.connect(tmp_path / "box.db")) as found:
        ids = [unique_id for (unique_id,) in found.execute("SELECT unique_id FROM box")]
    assert (len(ids), len(set(ids))) == (2, 2)


async def test_the_service_commits_both_or_none(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, server: EmbeddedRocketMQ, table: str
) -> None:
    async with engine.begin() as connection:
        await connection.execute(text(f"CREATE TABLE orders_{table} (id INTEGER PRIMARY KEY)"))
    for number in range(10):
        with pytest.raises(IntegrityError) if number % 2 else nullcontext():
            async with sessions.begin() as session:
                await outbox.add(session, Message("T", b"%d" % (number // 2)))
                await session.execute(text(f"INSERT INTO orders_{table} VALUES (:id)"), {"id": number // 2})
    await settled(outbox)
    assert bodies(server) == [b"%d" % number for number in range(5)]
