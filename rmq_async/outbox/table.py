"""The table, and the expressions that differ between databases.

All times in it are of the database's clock, so that leases hold between machines whose clocks differ. Two partial indexes cover
unsent rows, so they stay small while sent rows wait for ``purge``: one by id, the order of sending, one by sharding key. A third
one is for ``purge``. A sent row takes some 230 bytes and its body in PostgreSQL, and 30 to 60 bytes in indexes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    literal_column,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.expression import FunctionElement

from rmq_protocol.errors import shown

from ..errors import ConfigError

__all__ = ["FAILED", "PENDING", "SENDING", "SENT", "STATES", "outbox_table", "seconds_from_now", "seconds_since"]

PENDING: Final = "PENDING"
SENDING: Final = "SENDING"
SENT: Final = "SENT"
FAILED: Final = "FAILED"
STATES: Final = (PENDING, SENDING, SENT, FAILED)

_LONGEST_NAME: Final = 40
"""PostgreSQL cuts names at 63 bytes, and those of indexes are longer than the table's."""


class UtcDateTime(TypeDecorator[datetime]):
    """Aware datetimes, also in SQLite, which stores no time zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name != "sqlite":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


def outbox_table(metadata: MetaData, name: str = "rmq_outbox") -> Table:
    """The table of an outbox, as part of ``metadata``: for Alembic, or to create it with the tables of a service.

    ``name``: of at most 40 characters, or "schema.name". Raises ConfigError.
    """
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"table must be the name of a table, not {shown(name)}")
    schema, _, table = name.rpartition(".")
    if not table or len(table.encode()) > _LONGEST_NAME:
        raise ConfigError(f"table must have 1 to {_LONGEST_NAME} characters, not {shown(name)}")
    made = Table(
        table,
        metadata,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
        Column("topic", String(255), nullable=False),
        Column("tags", Text),
        Column("keys", Text, comment="separated by spaces"),
        Column("body", LargeBinary, nullable=False),
        Column("properties", Text, comment="a JSON object"),
        Column("sharding_key", Text),
        Column("flag", Integer, nullable=False),
        Column("wait_store", Boolean, nullable=False),
        Column("delay_level", Integer, nullable=False),
        Column("deliver_at", UtcDateTime),
        Column("unique_id", String(255), nullable=False),
        Column("state", String(8), nullable=False, comment=", ".join(STATES)),
        Column("owner", String(64), comment="who sends it until lease"),
        Column("lease", UtcDateTime),
        Column("attempts", Integer, nullable=False),
        Column("next_attempt", UtcDateTime, nullable=False, comment="while SENDING: when the lease is over"),
        Column("alerted", UtcDateTime),
        Column("last_error", Text),
        Column("offset_message_id", String(255)),
        Column("queue", String(255), comment="broker:queue"),
        Column("queue_offset", BigInteger),
        Column("created", UtcDateTime, nullable=False),
        Column("updated", UtcDateTime, nullable=False),
        schema=schema or None,
        sqlite_autoincrement=True,  # ids grow also after a purge: they are the order of sending
    )
    unsent = made.c.state != _text(SENT)
    Index(f"ix_{table}_unsent", made.c.id, postgresql_where=unsent, sqlite_where=unsent)
    keyed = unsent & made.c.sharding_key.is_not(None)
    Index(f"ix_{table}_key", made.c.sharding_key, made.c.topic, made.c.id, postgresql_where=keyed, sqlite_where=keyed)
    sent = made.c.state == _text(SENT)
    Index(f"ix_{table}_sent", made.c.updated, postgresql_where=sent, sqlite_where=sent)
    return made


def _text(value: str) -> ColumnElement[str]:
    """A literal: a condition that begins with a bound value matches no partial index."""
    return literal_column(f"'{value}'", String)


# -- the clock of the database


class seconds_from_now(FunctionElement[datetime]):  # noqa: N801 - written like a function
    """The database's current time plus so many seconds, also negative; not the time at which the transaction began."""

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
    """Seconds from a time in the table until now."""

    type = Float()
    inherit_cache = True
    name = "seconds_since"


@compiles(seconds_since, "postgresql")
def _age_postgresql(element: seconds_since, compiler: Any, **options: Any) -> str:
    return f"CAST(EXTRACT(EPOCH FROM clock_timestamp() - ({compiler.process(element.clauses, **options)})) AS double precision)"


@compiles(seconds_since, "sqlite")
def _age_sqlite(element: seconds_since, compiler: Any, **options: Any) -> str:
    then = compiler.process(element.clauses, **options)
    return f"round((julianday('now') - julianday({then})) * 86400.0, 3)"  # days as floats are a few microseconds off
