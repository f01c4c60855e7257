"""Starting and stopping: nothing stays taken, nothing stays behind, and a database or a cluster may be away."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import ForkedError, Message, Producer, WrongLoopError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from .support import Sessions, rows, settled, until


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


async def states(engine: AsyncEngine, table: str) -> list[tuple[str, str | None]]:
    return [(row["state"], row["owner"]) for row in await rows(engine, table)]


def running(outbox: Outbox) -> Any:
    relay = outbox._relay
    assert relay is not None
    return relay


# -- what a stop leaves


@pytest.mark.parametrize("method", ["owned", "body"])
async def test_a_stop_gives_back_what_the_database_was_asked_about(
    method: str, outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str
) -> None:
    asked = asyncio.Event()

    async def never(*_: Any) -> Any:
        asked.set()
        await asyncio.sleep(30)

    setattr(outbox._store, method, never)
    size = 100_000 if method == "body" else 10
    if method == "owned":
        async with sessions.begin() as session:
            await outbox.add(session, Message("T", b"x" * size))
    else:  # claimed without its body
        async with engine.begin() as connection:
            await outbox.add(connection, Message("T", b"x" * size))
    await asked.wait()
    await outbox.stop(0.0)
    assert await states(engine, table) == [("PENDING", None)]


async def test_a_stop_gives_back_what_it_had_no_time_to_begin(
    outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str, server: EmbeddedRocketMQ
) -> None:
    owned = outbox._store.owned

    async def last(*given: Any) -> Any:
        found = await owned(*given)
        stopping.append(asyncio.create_task(outbox.stop(0.0)))
        return found

    stopping: list[asyncio.Task[None]] = []
    outbox._store.owned = last  # type: ignore[method-assign]
    async with sessions.begin() as session:
        for key in (None, None, "a", "a", "b"):
            await outbox.add(session, Message("T", b"x", sharding_key=key))
    await until(lambda: bool(stopping))
    await stopping[0]
    assert await states(engine, table) == [("PENDING", None)] * 5
    assert not server.messages("T")


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
    assert found[0][0] == "SENDING"  # nobody knows
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


async def test_a_stop_that_is_cancelled_leaves_no_task(outbox: Outbox, sessions: Sessions, server: EmbeddedRocketMQ) -> None:
    server.stall("broker-a")
    server.stall("broker-b")
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"x"))
    await until(lambda: running(outbox).sending.in_hand == 1)
    before = asyncio.all_tasks()
    stopping = asyncio.create_task(outbox.stop(20.0))
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not [task.get_name() for task in asyncio.all_tasks() & before if task.get_name().startswith("rmq_async outbox")]


# -- loops and processes


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
        old = outbox._relay
        with asyncio.Runner() as second:
            second.run(elsewhere())
        assert outbox._relay is old

    async def again() -> None:
        await outbox.start()
        assert outbox._relay is not old
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
