"""Connects to the database of a URL and shortens its errors.

The errors of this module quote no part of a URL except the name of a SQLite file, because any other part may contain a
password. Messages of the database or the system may contain the user and the address.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import click
from sqlalchemy import URL, MetaData, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rmq_async import ConfigError
from rmq_async.outbox import Store, outbox_table, reason_of

CONNECT_TIMEOUT: Final = 10.0
LEASE: Final = 30.0
"""Seconds for which a store reserves the rows that it claims. The stores of this module claim no rows."""
_FORMS: Final = "give postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE"
_REFUSED: Final = "the database's driver does not accept the URL; check its options and its port"
ERRORS: Final = (SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Errors of the database. SQLAlchemy 2.0 does not wrap the errors that asyncpg raises while it connects."""


@asynccontextmanager
async def connected(database: str, table: str) -> AsyncIterator[tuple[AsyncEngine, Store]]:
    """Yield an engine and the store of an existing table. Dispose of the engine at the end.

    Raises:
        UsageError: For an invalid URL.
        ConfigError: For an invalid table name and for a table that is missing or lacks a column.
        ClickException: If a SQLite file is missing, and for other errors of the database. The message is one line.
    """
    engine = _engine(database)
    try:
        store = Store(engine, outbox_table(MetaData(), table), "rmq outbox", LEASE)
        with _short_database_errors():
            await _connect(engine)
            await store.probe()
            yield engine, store
    finally:
        await engine.dispose()


@contextmanager
def _short_database_errors() -> Iterator[None]:
    """Raise ClickException for errors of the database, without the statement and its parameters."""
    try:
        yield
    except ERRORS as error:
        raise click.ClickException(f"the database reports: {reason_of(error)}") from error


def _engine(database: str) -> AsyncEngine:
    try:
        url = make_url(database)
    except (ArgumentError, ValueError):
        raise click.UsageError(f"the URL of the database cannot be read; {_FORMS}") from None
    kind = url.drivername.partition("+")[0]
    if kind in ("postgresql", "postgres"):
        return _postgresql(url)
    if kind == "sqlite":
        return _sqlite(url)
    raise click.UsageError(f"an outbox needs PostgreSQL or SQLite, and the URL names another database; {_FORMS}")


def _postgresql(url: URL) -> AsyncEngine:
    query = dict(url.query)
    if "sslmode" in query:  # the parameter's name in libpq
        query.setdefault("ssl", query.pop("sslmode"))
    timeout: dict[str, Any] = {"timeout": CONNECT_TIMEOUT}
    return _made(url.set(drivername="postgresql+asyncpg", query=query), connect_args=timeout)


def _sqlite(url: URL) -> AsyncEngine:
    file = url.database
    if url.host or url.username:
        raise click.UsageError("a SQLite database is a file, and the URL names a host; give sqlite:///FILE")
    if not file or file == ":memory:":
        raise click.UsageError(
            "the URL names a SQLite database in memory, which other processes cannot see; give sqlite:///FILE"
        )
    if not Path(file).is_file():
        raise click.ClickException(f"there is no SQLite file {file}; the service that adds messages must create it")
    return _made(url.set(drivername="sqlite+aiosqlite"))


def _made(url: URL, **settings: Any) -> AsyncEngine:
    try:
        return create_async_engine(url, hide_parameters=True, **settings)
    except (ArgumentError, ValueError, TypeError):
        raise click.UsageError(_REFUSED) from None


async def _connect(engine: AsyncEngine) -> None:
    try:
        async with engine.connect():
            pass
    except (ConfigError, *ERRORS):
        raise
    except OSError as error:
        raise click.ClickException(
            f"the database cannot be reached: {str(error) or 'no answer in time'}; check its URL, and that it runs"
        ) from error
    except (TypeError, ValueError) as error:
        raise click.UsageError(_REFUSED) from error
