"""The table of an outbox.

All times in it except ``deliver_at`` are of the database's clock, so that leases hold between machines whose clocks differ. Two
partial indexes cover unsent rows, so they stay small while sent rows wait for ``purge``: one by id, the order of sending, one
by sharding key. A third one is for ``purge``.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    literal_column,
)
from sqlalchemy.sql.elements import ColumnElement

from .._database import split_table_name

PENDING: Final = "PENDING"
SENDING: Final = "SENDING"
SENT: Final = "SENT"
FAILED: Final = "FAILED"
STATES: Final = (PENDING, SENDING, SENT, FAILED)


def outbox_table(metadata: MetaData, name: str = "rmq_outbox") -> Table:
    """Return the table of an outbox as part of ``metadata``, for Alembic or to create it with the tables of a service.

    Args:
        name: Name of at most 40 bytes in UTF-8, or "schema.name".

    Raises:
        ConfigError: For another name, and SQLAlchemy's InvalidRequestError if ``metadata`` has a table of that name already.
    """
    schema, table = split_table_name(name)
    time = DateTime(timezone=True)
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
        Column("deliver_at", time),
        Column("unique_id", String(255), nullable=False),
        Column("state", String(8), nullable=False, comment=", ".join(STATES)),
        Column("owner", String(64), comment="who sends it until lease"),
        Column("lease", time),
        Column("attempts", Integer, nullable=False),
        Column("next_attempt", time, nullable=False, comment="while SENDING: when the lease is over"),
        Column("alerted", time),
        Column("last_error", Text),
        Column("offset_message_id", String(255)),
        Column("queue", String(255), comment="broker:queue"),
        Column("queue_offset", BigInteger),
        Column("created", time, nullable=False),
        Column("updated", time, nullable=False),
        schema=schema,
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
    """Return a text as an SQL literal: a condition with a bound value matches no partial index."""
    return literal_column(f"'{value}'", String)
