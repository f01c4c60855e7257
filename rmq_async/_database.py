"""Helpers for tables in a service's database: table names, times of the database's clock, and the supported databases.

Alembic writes the name of a column's type into its migrations, but no import if the type is from another package. So columns have
SQLAlchemy's own types, and ``UtcDateTime`` is used only in statements.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import DateTime, Dialect, Float, TypeDecorator
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.expression import FunctionElement

from rmq_protocol.errors import shown

from ._text import type_name
from .errors import ConfigError

Session = AsyncSession | async_scoped_session[Any] | AsyncConnection
"""The objects through which rows are added in the user's transaction."""

DIALECTS: Final = ("postgresql", "sqlite")
_LONGEST_NAME: Final = 40
"""Maximum bytes of a table name. PostgreSQL truncates names at 63 bytes, and the name of an index is the name of the table with a
prefix and a suffix."""


def split_table_name(name: str) -> tuple[str | None, str]:
    """Return the schema (or None) and the table of "schema.name" or "name".

    Raises:
        ConfigError: For any other value, and for a table name of more than 40 bytes in UTF-8.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f'table must be the name of a table, "name" or "schema.name", not {shown(name)}')
    schema, _, table = name.rpartition(".")
    if not table or len(table.encode()) > _LONGEST_NAME:
        raise ConfigError(f"table must have 1 to {_LONGEST_NAME} bytes in UTF-8 (without its schema), not {shown(name)}")
    return schema or None, table


def check_engine(engine: AsyncEngine, owner: str) -> None:
    """Raise ConfigError for an object that is not an AsyncEngine, and for a database that is not supported.

    Args:
        owner: Subject of the error message, such as "an outbox".
    """
    if not isinstance(engine, AsyncEngine):
        raise ConfigError(f"engine must be an AsyncEngine (sqlalchemy.ext.asyncio), not {type(engine).__name__}")
    check_dialect(engine.dialect.name, owner)


def check_dialect(name: str, owner: str) -> None:
    """Raise ConfigError for a database that is not supported.

    Args:
        name: Name of the SQLAlchemy dialect.
        owner: Subject of the error message, such as "an outbox".
    """
    if name not in DIALECTS:
        raise ConfigError(f"{owner} requires PostgreSQL or SQLite, not {shown(name)}")


def checked_session(session: Session) -> AsyncSession | AsyncConnection:
    """Return the object that executes statements: the session of a scoped session, or else ``session`` itself.

    Raises:
        TypeError: For an object of another type.
    """
    if isinstance(session, async_scoped_session):
        session = session()
    if not isinstance(session, AsyncSession | AsyncConnection):
        kind = type_name(session)
        raise TypeError(f"session must be an AsyncSession, an async_scoped_session or an AsyncConnection, not {kind}")
    return session


def dialect_of(session: AsyncSession | AsyncConnection) -> str:
    """Return the name of the SQLAlchemy dialect of the session's database."""
    return (session if isinstance(session, AsyncConnection) else session.get_bind()).dialect.name


def check_transactional(session: AsyncSession | AsyncConnection, owner: str) -> None:
    """Raise ConfigError if the isolation level of the session's engine or connection is AUTOCOMMIT. With that level, each statement
    is committed separately, and a rollback has no effect.

    A level that a session sets for one transaction with ``session.connection(execution_options=...)`` is not detected.
    """
    bind = session.get_bind() if isinstance(session, AsyncSession) else session.sync_connection
    if bind is None:
        return  # the connection is not started, so its first statement will raise
    level = bind.get_execution_options().get("isolation_level")
    if level is None:
        # the level from create_engine(isolation_level=...), which SQLAlchemy shows nowhere else without a query
        level = getattr(bind.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise ConfigError(
            f"{owner} requires a transaction, but the session's isolation level is AUTOCOMMIT; use an engine with the default level"
        )


class UtcDateTime(TypeDecorator[datetime]):
    """The SQL type of aware datetimes. SQLite stores no time zone, so values are written and read as UTC there."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


# -- the clock of the database


class seconds_from_now(FunctionElement[datetime]):  # noqa: N801 - written like a function
    """The SQL expression for the database's current time plus a number of seconds, which may be negative.

    The current time is not the time at which the transaction began.
    """

    type = UtcDateTime()
    inherit_cache = True
    name = "seconds_from_now"


@compiles(seconds_from_now, "postgresql")
def _later_postgresql(element: seconds_from_now, compiler: Any, **options: Any) -> str:
    return (
        f"clock_timestamp() + make_interval(secs => CAST({compiler.process(element.clauses, **options)} AS double precision))"
    )


@compiles(seconds_from_now, "sqlite")
def _later_sqlite(element: seconds_from_now, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f', 'now', printf('%.3f seconds', {seconds}))"


class seconds_since(FunctionElement[float]):  # noqa: N801
    """The SQL expression for the seconds from a time in a column until the database's current time."""

    type = Float()
    inherit_cache = True
    name = "seconds_since"


@compiles(seconds_since, "postgresql")
def _age_postgresql(element: seconds_since, compiler: Any, **options: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM clock_timestamp() - ({compiler.process(element.clauses, **options)})) AS double precision)"


@compiles(seconds_since, "sqlite")
def _age_sqlite(element: seconds_since, compiler: Any, **options: Any) -> str:
    then = compiler.process(element.clauses, **options)
    return f"round((julianday('now') - julianday({then})) * 86400.0, 3)"  # rounded, because float days are microseconds off
