"""The table: made once, known to Alembic, in any schema, and asked for by its indexes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async import Producer
from rmq_async.outbox import Outbox

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
        ("stuck", "unsent"), ("unsent_totals", "unsent"), ("sent_total", "sent"), ("purge", "sent"), ("purge_failed", "unsent"),
        ("retry_all", "unsent"),
    ],
)  # fmt: skip
async def test_every_look_goes_by_an_index(name: str, index: str, outbox: Outbox, engine: AsyncEngine, table: str) -> None:
    statements = outbox._store.statements
    statement = statements.claim(only=name == "claim_only") if name.startswith("claim") else getattr(statements, name)
    assert f"ix_{table}_{index}" in await plan(outbox, engine, statement)


async def test_a_purge_looks_at_old_rows_alone(outbox: Outbox, engine: AsyncEngine, table: str) -> None:
    found = await plan(outbox, engine, outbox._store.statements.purge)
    told = {"sqlite": f"ix_{table}_sent (updated<?)", "postgresql": "Index Cond: (updated <= "}
    assert told[engine.dialect.name] in found
