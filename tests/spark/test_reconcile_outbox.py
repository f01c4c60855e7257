"""rmq spark reconcile --outbox: an outbox against its topic, out of SQLite by an export and out of PostgreSQL by JDBC."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async import Message, Producer

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rmq_async.outbox import Outbox
from rmq_async.spark.pipelines import reconcile as pipeline

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
SENT = 40
"""Messages of a topic that an outbox has sent."""


@asynccontextmanager
async def database(url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(url)
    try:
        yield engine
    finally:
        await engine.dispose()


async def relay(url: str, namesrv: str, topic: str, other: str) -> None:
    """Fills an outbox and has it sent, but for one message; one is of another topic."""
    async with database(url) as engine, asyncio.timeout(60):
        sessions = async_sessionmaker(engine)
        outbox = Outbox(engine, Producer("outbox", namesrv=namesrv), poll_interval=0.05)
        await outbox.create_table()
        async with outbox:
            async with sessions.begin() as session:
                for number in range(SENT):
                    sharding_key = f"order-{number % 3}" if number % 2 else None
                    keys = ("all", f"order-{number}") if number else ()
                    await outbox.add(session, Message(topic, b"x", keys=keys, sharding_key=sharding_key))
                await outbox.add(session, Message(other, b"of another topic"))
            while (await outbox.status()).pending:
                await asyncio.sleep(0.05)
        async with sessions.begin() as session:
            await outbox.add(session, Message(topic, b"waits"))


async def lose(url: str, topic: str) -> str:
    """Adds a row that claims that its message was sent; returns its unique id."""
    lost = f"lost of {topic}"
    async with database(url) as engine, async_sessionmaker(engine).begin() as session:
        row = await Outbox(engine, Producer("outbox")).add(session, Message(topic, b"x", keys="order-lost", unique_id=lost))
        await session.execute(text("UPDATE rmq_outbox SET state = 'SENT' WHERE id = :row"), {"row": row})
    return lost


def lines(capsys: pytest.CaptureFixture[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Findings, and the summary."""
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if "kind" in line], lines[-1]


def counts(summary: dict[str, Any]) -> tuple[int, ...]:
    return tuple(summary[name] for name in ("sent", "acknowledged", "messages", "matched", "missing", "without_id"))


def export(place: Path) -> Path:
    """``outbox.json`` of ``orders.db``, by the lines of the page."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (source,) = [block for block in blocks if "FROM rmq_outbox" in block]
    exec(compile(source.replace('"./', f'"{place}/'), str(PAGE), "exec"), {})
    return place / "outbox.json"


@pytest.mark.deep
def test_an_export_of_an_outbox_is_held_against_its_topic(
    spark: SparkSession, embedded_topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, other = embedded_topics.make(3), embedded_topics.make(1)
    url = f"sqlite+aiosqlite:///{tmp_path}/orders.db"
    loop, namesrv = embedded_topics.loop, embedded_topics.namesrv
    loop.run(relay(url, namesrv, topic, other))
    command = ["--namesrv", namesrv, "--outbox", "--format", "json", "--sent", str(export(tmp_path)), "--json"]
    command += ["--fail-on", "unacknowledged,unknown,duplicate"]
    hour_ago = ["--from", (datetime.now(UTC) - timedelta(hours=1)).isoformat()]
    assert pipeline.main([*command, "--topic", f"{topic}, {other}", *hour_ago]) == 0
    findings, summary = lines(capsys)
    assert findings == []
    assert counts(summary) == (SENT + 2, SENT + 1, SENT + 1, SENT + 1, 0, 0)

    lost = loop.run(lose(url, topic))
    export(tmp_path)
    assert pipeline.main([*command, "--topic", topic, *hour_ago]) == 1
    findings, summary = lines(capsys)
    assert [(line["kind"], line["id"], line["key"], line["state"]) for line in findings] == [
        ("missing", lost, "order-lost", "SENT")
    ]
    assert counts(summary) == (SENT + 2, SENT + 1, SENT, SENT, 1, 0), "rows of another topic are not looked for"
    hour_on = ["--from", (datetime.now(UTC) + timedelta(hours=1)).isoformat()]
    assert pipeline.main([*command, "--topic", topic, *hour_on]) == 0, "nor those of another time"
    assert counts(lines(capsys)[1]) == (0, 0, 0, 0, 0, 0)


def test_an_outbox_in_postgresql_is_held_against_its_topic_over_jdbc(
    spark: SparkSession,
    postgres_driver: None,
    postgres_url: str,
    embedded_topics: Topics,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topic, other = embedded_topics.make(3), embedded_topics.make(1)
    loop, namesrv = embedded_topics.loop, embedded_topics.namesrv
    loop.run(relay(postgres_url, namesrv, topic, other))
    where = postgres_url.partition("@")[2]
    command = ["--namesrv", namesrv, "--outbox", "--topic", topic, "--format", "jdbc", "--json"]
    table = {
        "url": f"jdbc:postgresql://{where}",
        "dbtable": "rmq_outbox",
        "user": "postgres",
        "driver": "org.postgresql.Driver",
    }
    command += [part for name, value in table.items() for part in ("--read-option", f"{name}={value}")]
    command += ["--fail-on", "unacknowledged,unknown,duplicate"]
    command += ["--from", (datetime.now(UTC) - timedelta(hours=1)).isoformat()]
    assert pipeline.main(command) == 0
    findings, summary = lines(capsys)
    assert findings == []
    assert counts(summary) == (SENT + 1, SENT, SENT, SENT, 0, 0)

    lost = loop.run(lose(postgres_url, topic))
    assert pipeline.main(command) == 1
    findings, summary = lines(capsys)
    assert [(line["kind"], line["id"], line["key"]) for line in findings] == [("missing", lost, "order-lost")]
    assert counts(summary) == (SENT + 2, SENT + 1, SENT, SENT, 1, 0)
