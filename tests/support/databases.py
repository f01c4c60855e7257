"""Fixtures of tests on both databases, a SQLite file and PostgreSQL, unless the test says which; nothing may be left behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from .leftovers import nothing_is_left
from .postgres import postgres

__all__ = ["Sessions", "clean", "engine", "on_postgresql", "on_sqlite", "postgres_url", "prepare_sqlite", "sessions", "url"]

Sessions = async_sessionmaker[AsyncSession]

on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For tests of what the process does, on any database."""
on_postgresql = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def prepare_sqlite(connection: Any, _: Any) -> None:
    """As services should: readers and a writer side by side."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that the test has for itself (SQLite) or shares with others, under a table of its own (PostgreSQL)."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/service.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def clean() -> AsyncIterator[None]:
    async with nothing_is_left():
        yield


@pytest.fixture
async def engine(url: str, clean: None) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url, poolclass=NullPool if url.startswith("sqlite") else None)
    if url.startswith("sqlite"):
        event.listen(made.sync_engine, "connect", prepare_sqlite)
    try:
        yield made
    finally:
        await made.dispose()


@pytest.fixture
def sessions(engine: AsyncEngine) -> Sessions:
    return async_sessionmaker(engine)
