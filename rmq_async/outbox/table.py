"""The table of an outbox.

All times in the table except ``deliver_at`` come from the database's clock, so that leases are valid across machines whose
clocks differ. Two partial indexes cover only unsent rows, so they stay small while sent rows wait for ``purge``. One is sorted
by id, which is the order of sending, and the other by sharding key. A third index is for ``purge``.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import MetaData, Table  # imported by name, so that the public signature shows no module

from .._database import split_table_name

PENDING: Final = "PENDING"
SENDING: Final = "SENDING"
SENT: Final = "SENT"
FAILED: Final = "FAILED"
STATES: Final = (PENDING, SENDING, SENT, FAILED)


def outbox_table(metadata: MetaData, name: str = "rmq_outbox") -> Table:
    """Return the table of an outbox as part of ``metadata``, for use with Alembic or to create it together with a service's
    tables.

    Args:
        name: Name of the table, at most 40 bytes in UTF-8, or "schema.name".

    Raises:
        ConfigError: For an invalid name.
        InvalidRequestError: If ``metadata`` already has a table with that name (an error of SQLAlchemy).
    """
    schema, table = split_table_name(name)
    time = sa.DateTime(timezone=True)
    made = Table(
        table,
        metadata,
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("topic", sa.String(255), nullable=False),
        sa.Column("tags", sa.Text),
        sa.Column("keys", sa.Text, comment="separated by spaces"),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("properties", sa.Text, comment="a JSON object"),
        sa.Column("sharding_key", sa.Text),
        sa.Column("flag", sa.Integer, nullable=False),
        sa.Column("wait_store", sa.Boolean, nullable=False),
        sa.Column("delay_level", sa.Integer, nullable=False),
        sa.Column("deliver_at", time),
        sa.Column("unique_id", sa.String(255), nullable=False),
        sa.Column("state", sa.String(8), nullable=False, comment=", ".join(STATES)),
        sa.Column("owner", sa.String(64), comment="who sends it until lease"),
        sa.Column("lease", time),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_attempt", time, nullable=False, comment="while SENDING: when the lease is over"),
        sa.Column("alerted", time),
        sa.Column("last_error", sa.Text),
        sa.Column("offset_message_id", sa.String(255)),
        sa.Column("queue", sa.String(255), comment="broker:queue"),
        sa.Column("queue_offset", sa.BigInteger),
        sa.Column("created", time, nullable=False),
        sa.Column("updated", time, nullable=False),
        schema=schema,
        sqlite_autoincrement=True,  # ids must keep growing after a purge, because they define the order of sending
    )
    unsent = made.c.state != literal(SENT)
    sa.Index(f"ix_{table}_unsent", made.c.id, postgresql_where=unsent, sqlite_where=unsent)
    keyed = unsent & made.c.sharding_key.is_not(None)
    sa.Index(f"ix_{table}_key", made.c.sharding_key, made.c.topic, made.c.id, postgresql_where=keyed, sqlite_where=keyed)
    sent = made.c.state == literal(SENT)
    sa.Index(f"ix_{table}_sent", made.c.updated, postgresql_where=sent, sqlite_where=sent)
    return made


def literal(value: str) -> sa.ColumnElement[str]:
    """Return a string as an SQL literal, because a condition with a bound value does not match a partial index."""
    return sa.literal_column(f"'{value}'", sa.String)
