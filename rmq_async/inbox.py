"""An inbox: a table of handled messages in the database to which the handlers write. With an inbox, each message takes effect once.

    inbox = Inbox(group="payments")

    @consumer.handler("PaymentTopic")
    async def pay(message: MessageExt) -> None:
        async with sessions.begin() as session:
            if await inbox.first(session, message):
                session.add(Payment.from_json(message.body))

Brokers deliver messages at least once. The inbox inserts a row with the group and the key of the message in the transaction in
which the handler writes its own rows, so either both are committed or neither is. The module requires the extra ``outbox``
(SQLAlchemy 2, aiosqlite, asyncpg).
"""

from __future__ import annotations

try:
    import sqlalchemy.ext.asyncio
except ImportError as missing:
    raise ImportError(f'rmq_async.inbox cannot import SQLAlchemy ({missing}): pip install "rmq-async[outbox]"') from missing

from collections.abc import Callable
from typing import Any, Final, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_protocol.errors import shown
from rmq_protocol.message import MessageExt
from rmq_protocol.validation import plain

from ._database import (
    Session,
    check_dialect,
    check_engine,
    check_transactional,
    checked_session,
    dialect_of,
    seconds_from_now,
    split_table_name,
)
from ._functions import check_plain
from ._text import type_name
from ._threads import naming_refusals
from .config import check_group, check_seconds
from .errors import InvalidMessageError

__all__ = ["Inbox"]

LONGEST_KEY: Final = 255
"""Maximum number of characters of a key. Together with the group, a key fits into an index entry of PostgreSQL (2704 bytes)."""


class Inbox:
    """A table with the keys of the messages that have taken effect.

    Errors of the database propagate from the methods: SQLAlchemyError, and OSError or an error of the driver if the database cannot
    be reached.

    Args:
        group: The group of the consumer. Groups that share a table have separate rows.
        table: The name of the table, "name" or "schema.name". The name may have at most 40 bytes in UTF-8.
        key: A function that returns the identity of a message, a str of 1 to 255 characters. The default is the message's unique
            id, which all attempts of one send and all deliveries share. For a message without a unique id, the default is the
            offset id of the first copy at a broker, or, with ``mode="pop"``, the offset id of each copy. A key of the application,
            such as an order number, also detects messages that were sent by two calls.

    Raises:
        ConfigError: For an invalid table name or ``key``.
        TypeError: For a ``key`` that does not take one argument.
        InvalidGroupError: For an invalid group name.
    """

    def __init__(self, *, group: str, table: str = "rmq_inbox", key: Callable[[MessageExt], str] | None = None) -> None:
        check_group(group)
        if key is not None:
            check_plain("key", key, "message")
        self.group = str.__str__(group)
        self.metadata = sa.MetaData()
        """The metadata for Alembic's ``target_metadata``. It has only this table."""
        self._key = _id_of if key is None else key
        self._table = _inbox_table(self.metadata, table)
        self._first = {"postgresql": _insert(postgresql.insert, self._table), "sqlite": _insert(sqlite.insert, self._table)}
        self._purge = _purge(self._table)

    def __repr__(self) -> str:
        return f"<Inbox {self._table.fullname} of {self.group}>"

    async def create_table(self, engine: AsyncEngine) -> None:
        """Create the table and its index if no table with that name exists.

        Raises:
            ConfigError: For an object that is not an AsyncEngine, and for a database other than PostgreSQL or SQLite.
        """
        check_engine(engine, "an inbox")
        with naming_refusals():
            async with engine.begin() as connection:
                await connection.run_sync(self._table.create, checkfirst=True)

    async def first(self, session: Session, message: MessageExt) -> bool:
        """Add a row for the message in the session's transaction. Return whether the message is new to the group.

        Return False if the key was added before, by a committed transaction or by this one. Two transactions with the same key do
        not run concurrently: in PostgreSQL, the second one waits here until the first one has ended; in SQLite, it waits until it
        may write. A rollback removes the row. The pending changes of an AsyncSession are flushed first, unless its ``autoflush`` is
        off.

        At isolation levels above READ COMMITTED, the database also raises serialization errors. Let these errors propagate out of
        the handler; the message is then delivered again.

        Raises:
            InvalidMessageError: For a key that is empty, longer than 255 characters, not a str, or contains NUL.
            ConfigError: For a session of a database other than PostgreSQL or SQLite, or with the isolation level AUTOCOMMIT.
            TypeError: For an object that is not a session or connection, or not a MessageExt. Errors of ``key`` also propagate.
        """
        target = checked_session(session)
        dialect = dialect_of(target)
        statement = self._first.get(dialect)
        if statement is None:
            check_dialect(dialect, "an inbox")
        check_transactional(target, "an inbox")
        values = {"consumer_group": self.group, "message_key": self._checked_key(message)}
        result = await target.execute(cast("Any", statement), values)
        return cast("sa.CursorResult[Any]", result).rowcount == 1

    async def purge(self, session: Session, older_than: float) -> int:
        """Delete the group's rows that are older than ``older_than`` seconds, in the session's transaction. Return their number.

        A message that is delivered again after its row was deleted counts as new. By default, brokers keep a message for 72
        hours (``fileReservedTime``) and keep a copy that waits for a retry for another 72 hours, so choose more than 144 hours.

        Raises:
            ConfigError: For a time that is negative, is not a number of seconds, or is 10^9 s (31 years) or more, and for a session
                of a database other than PostgreSQL or SQLite.
            TypeError: For an object that is not a session or connection.
        """
        check_seconds("older_than", older_than, zero=True)
        target = checked_session(session)
        dialect = dialect_of(target)
        check_dialect(dialect, "an inbox")
        result = await target.execute(self._purge, {"group": self.group, "age": older_than})
        return cast("sa.CursorResult[Any]", result).rowcount

    def _checked_key(self, message: MessageExt) -> str:
        if not isinstance(message, MessageExt):
            raise TypeError(f"message must be a MessageExt, not {type_name(message)}")
        key = self._key(message)
        if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or "\0" in key:
            raise InvalidMessageError(
                f"the key of message {message.msg_id} in inbox {self._table.fullname} must be a str of 1 to {LONGEST_KEY} "
                f"characters without NUL, not {shown(key)}"
            )
        return plain(key)


def _id_of(message: MessageExt) -> str:
    """Return the message's unique id. If it has none, return its ORIGIN_MESSAGE_ID (the offset id of the first copy), or else its
    own offset id.
    """
    return message.unique_id or message.properties.get("ORIGIN_MESSAGE_ID") or message.offset_msg_id


def _inbox_table(metadata: sa.MetaData, name: str) -> sa.Table:
    schema, table = split_table_name(name)
    made = sa.Table(
        table,
        metadata,
        sa.Column("consumer_group", sa.String(255), primary_key=True),
        sa.Column("message_key", sa.String(LONGEST_KEY), primary_key=True),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        schema=schema,
    )
    sa.Index(f"ix_{table}_created", made.c.consumer_group, made.c.created)
    return made


def _insert(insert: Callable[[sa.Table], Any], table: sa.Table) -> Any:
    """Return the statement that inserts a row, with the current time of the database's clock, unless the row exists."""
    given = {name: sa.bindparam(name, type_=table.c[name].type) for name in ("consumer_group", "message_key")}
    created = seconds_from_now(sa.literal_column("0", sa.Float))
    return insert(table).values(**given, created=created).on_conflict_do_nothing()


def _purge(table: sa.Table) -> sa.Delete:
    group, before = sa.bindparam("group", type_=sa.String), seconds_from_now(-sa.bindparam("age", type_=sa.Float))
    return sa.delete(table).where(table.c.consumer_group == group, table.c.created <= before)
