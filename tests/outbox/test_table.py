"""The table: made once, known to Alembic, in any schema, and asked for by its indexes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, event, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox, outbox_table

from .support import Sessions, rows, settled, store_of

pytestmark = pytest.mark.interpreters

LISTS = {"ids": [1, 2, 3], "in_hand": [1, 2], "topics": ["T"]}
GIVEN = {
    "me": "m", "lease_seconds": 30.0, "limit": 10, "after": 0, "age": 60.0, "most_attempts": 10, "period": 600.0, "row": 1,
}  # fmt: skip


def parameters(statement: Any, dialect: Any) -> tuple[str, tuple[Any, ...]]:
    compiled = statement.compile(dialect=dialect)
    lists = {name: json.dumps(value) if dialect.name == "sqlite" else value for name, value in LISTS.items()}
    given = {name: value for name, value in (GIVEN | lists).items() if name in compiled.params}
    state = compiled.construct_expanded_state(compiled.params | given)
    values = [state.parameters[name] for name in state.positiontup]
    return state.statement, tuple(values)


async def plan(outbox: Outbox, engine: AsyncEngine, statement: Any) -> str:
    """How the database would find the rows, as one text."""
    written, values = parameters(statement, engine.dialect)
    async with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            found = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {written}", values)).all()
            return "\n".join(row[3] for row in found)
        await connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        await connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        found = (await connection.exec_driver_sql(f"EXPLAIN {written}", values)).all()
        return "\n".join(row[0] for row in found)


@pytest.fixture
async def outbox(engine: AsyncEngine, table: str) -> Outbox:
    made = Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"), table=table)
    await made.create_table()
    return made


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("claim_except", "unsent"), ("claim_except", "key"), ("claim_only", "unsent"), ("claim_only", "key"), ("blocked", "key"),
        ("stuck", "unsent"), ("totals", "unsent"), ("totals", "sent"), ("purge", "sent"), ("purge_failed", "unsent"),
        ("retry_all", "unsent"),
    ],
)  # fmt: skip
async def test_every_look_goes_by_an_index(name: str, index: str, outbox: Outbox, engine: AsyncEngine, table: str) -> None:
    statements = store_of(engine, table).statements
    statement = statements.claim(only=name == "claim_only") if name.startswith("claim") else getattr(statements, name)
    assert f"ix_{table}_{index}" in await plan(outbox, engine, statement)


async def test_a_purge_looks_at_old_rows_alone(outbox: Outbox, engine: AsyncEngine, table: str) -> None:
    found = await plan(outbox, engine, store_of(engine, table).statements.purge)
    expected = {"sqlite": f"ix_{table}_sent (updated<?)", "postgresql": "Index Cond: (updated <= "}
    assert expected[engine.dialect.name] in found


# -- the table itself


def differences(connection: Connection, metadata: MetaData, table: str) -> list[Any]:
    """What Alembic would change in the table of that name."""
    options = {"include_object": lambda found, name, kind, *_: kind != "table" or name == table, "include_schemas": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


async def test_alembic_finds_nothing_to_change(outbox: Outbox, engine: AsyncEngine, table: str) -> None:
    async with engine.connect() as connection:
        assert await connection.run_sync(differences, outbox.metadata, table) == []


async def test_the_table_can_be_one_of_the_service(engine: AsyncEngine, table: str) -> None:
    metadata = MetaData()
    made = outbox_table(metadata, table)
    assert metadata.tables[table] is made
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with engine.connect() as connection:
        assert await connection.run_sync(differences, metadata, table) == []
    await store_of(engine, table).probe()


async def test_a_table_that_is_there_is_left_as_it_is(
    outbox: Outbox, engine: AsyncEngine, sessions: Sessions, table: str
) -> None:
    async with sessions.begin() as session:
        await outbox.add(session, Message("T", b"x"))
    await outbox.create_table()
    assert len(await rows(engine, table)) == 1


async def test_a_table_may_be_in_a_schema(
    engine: AsyncEngine, sessions: Sessions, server: EmbeddedRocketMQ, table: str, tmp_path: Path
) -> None:
    if engine.dialect.name == "sqlite":

        def attach(connection: Any, _: Any) -> None:
            cursor = connection.cursor()
            cursor.execute(f"ATTACH DATABASE '{tmp_path}/other.db' AS s_{table}")
            cursor.close()

        event.listen(engine.sync_engine, "connect", attach)
    else:
        async with engine.begin() as connection:
            await connection.execute(text(f"CREATE SCHEMA s_{table}"))
    outbox = Outbox(engine, Producer("orders", namesrv=server.namesrv), table=f"s_{table}.{table}", poll_interval=0.02)
    await outbox.create_table()
    async with outbox:
        for key in (None, "k"):
            async with sessions.begin() as session:
                await outbox.add(session, Message("T", b"x", sharding_key=key))
        assert (await settled(outbox)).sent == 2
    assert await outbox.purge(0.0) == 2
    assert len(server.messages("T")) == 2


async def test_ids_only_grow_after_any_purge(outbox: Outbox, sessions: Sessions, engine: AsyncEngine, table: str) -> None:
    async with sessions.begin() as session:
        first = await outbox.add(session, Message("T", b"x"))
        await session.execute(text(f"UPDATE {table} SET state = 'SENT'"))
    assert await outbox.purge(0.0) == 1
    async with sessions.begin() as session:
        assert await outbox.add(session, Message("T", b"x")) > first


def test_importing_the_client_loads_no_sqlalchemy() -> None:
    program = "import sys; from rmq_async import *; print('sqlalchemy' in sys.modules, 'rmq_async.outbox' in sys.modules)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.stdout.split(), ended.stderr) == (["False", "False"], "")


def test_without_sqlalchemy_the_extra_is_named() -> None:
    program = "import sys; sys.modules['sqlalchemy'] = None; import rmq_async.outbox"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert 'pip install "rmq-async[outbox]"' in ended.stderr
