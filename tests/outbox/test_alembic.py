"""Migrations as a service makes them: ``alembic revision --autogenerate`` and ``alembic upgrade head`` in a fresh project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from alembic.command import init
from alembic.config import Config
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import Message, MessageExt, Producer
from rmq_async.inbox import Inbox
from rmq_async.outbox import Outbox

from .support import rows

TARGET = """
from sqlalchemy import MetaData
from rmq_async.inbox import Inbox
from rmq_async.outbox import outbox_table
models = MetaData()
outbox_table(models, {outbox!r})
target_metadata = [models, Inbox(group="billing", table={inbox!r}).metadata]
"""
ONLY_OURS = """
def include_object(found, name, kind, *_):
    return kind != "table" or name in {tables!r}
"""


def alembic(place: Path, *commands: tuple[str, ...]) -> str:
    """Runs the commands one after the other, in one process: each would spend 0.8 s of the processor on imports."""
    program = f"from alembic.config import main\nfor command in {commands!r}:\n    main(command)"
    command = [sys.executable, "-W", "error", "-c", program]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


async def test_generated_migrations_of_both_tables_run_as_they_are(url: str, table: str, tmp_path: Path) -> None:
    outbox, inbox = table, table.replace("outbox", "inbox_of_outbox")
    place = tmp_path / "project"
    place.mkdir()
    init(Config(place / "alembic.ini"), str(place / "migrations"), template="async")
    environment = place / "migrations" / "env.py"
    written = environment.read_text().replace("target_metadata = None", TARGET.format(outbox=outbox, inbox=inbox))
    # other tests have tables in this database
    written = ONLY_OURS.format(tables=(outbox, inbox)) + written.replace(
        "target_metadata=target_metadata", "target_metadata=target_metadata, include_object=include_object"
    )
    if not url.startswith("sqlite"):  # and migrations of their own
        written = written.replace("include_object=include_object", f"include_object=include_object, version_table='v_{table}'")
    environment.write_text(written)
    settings = place / "alembic.ini"
    settings.write_text(settings.read_text().replace("driver://user:pass@localhost/dbname", url.replace("%", "%%")))

    there_and_back = (("upgrade", "head"), ("downgrade", "base"), ("upgrade", "head"))
    said = alembic(place, ("revision", "--autogenerate", "-m", "messages"), *there_and_back, ("check",))
    assert "No new upgrade operations detected" in said
    (migration,) = (place / "migrations" / "versions").glob("*.py")
    assert "rmq_async" not in migration.read_text()

    engine = create_async_engine(url, poolclass=NullPool)
    async with engine.begin() as connection:
        await Outbox(engine, Producer("orders", namesrv="127.0.0.1:1"), table=outbox).add(connection, Message("T", b"x"))
        assert await Inbox(group="billing", table=inbox).first(connection, MessageExt("T", b"x", properties={"UNIQ_KEY": "A"}))
    assert [row["state"] for row in await rows(engine, outbox)] == ["PENDING"]
    await engine.dispose()
