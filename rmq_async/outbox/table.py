"""The table of an outbox.

All times in it except ``deliver_at`` are of the database's clock, so that leases hold between machines whose clocks differ. Two
partial indexes cover unsent rows, so they stay small while sent rows wait for ``purge``: one by id, the order of sending, one
by sharding key. A third one is for ``purge``.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from sqlalchemy import MetaData, Table  # without a module in the public signature

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
        sqlite_autoincrement=True,  # ids grow also after a purge: they are the order of sending
    )
    unsent = made.c.state != literal(SENT)
    sa.Index(f"ix_{table}_unsent", made.c.id, postgresql_where=unsent, sqlite_where=unsent)
    keyed = unsent & made.c.sharding_key.is_not(None)
    sa.Index(f"ix_{table}_key", made.c.sharding_key, made.c.topic, made.c.id, postgresql_where=keyed, sqlite_where=keyed)
    sent = made.c.state == literal(SENT)
    sa.Index(f"ix_{table}_sent", made.c.updated, postgresql_where=sent, sqlite_where=sent)
    return made


def literal(value: str) -> sa.ColumnElement[str]:
    """Return a text as an SQL literal: a condition with a bound value matches no partial index."""
    return sa.literal_column(f"'{value}'", sa.String)
