"""The database of either process: PostgreSQL, or a SQLite file."""

from typing import Any

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase


def open_database(url: str) -> AsyncEngine:
    engine = create_async_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", prepare_sqlite)
    return engine


def prepare_sqlite(connection: Any, _: Any) -> None:
    """Readers and a writer side by side. FULL: what is committed outlives a power cut."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


async def create_tables(engine: AsyncEngine, base: type[DeclarativeBase]) -> None:
    """Once, before anything is started; in production this is a migration of Alembic's."""
    async with engine.begin() as connection:
        await connection.run_sync(base.metadata.create_all)
