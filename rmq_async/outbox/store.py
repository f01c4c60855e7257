"""The queries of an outbox.

Each method of ``Store`` uses transactions of its own.

The methods raise the errors of the database (``DATABASE_ERRORS``), but ``probe`` raises ConfigError for a missing table or
column. The methods that a relay uses raise TimeoutError after ``patience`` seconds.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, Final

import msgspec
from sqlalchemy import CursorResult, Table
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool

from .. import machine
from .._database import check_engine
from .._text import printable
from .._threads import NoThreadError, naming_refusals
from ..errors import ConfigError
from .policy import error_text
from .rows import LONGEST_ID, Held, StuckMessage, message_of
from .statements import Statements

try:
    from asyncpg import InterfaceError, PostgresError
except ImportError:  # only SQLite, or another driver, is installed
    _DRIVER_ERRORS: tuple[type[Exception], ...] = ()
else:
    # SQLAlchemy 2.0 does not wrap the errors that asyncpg raises while it connects
    _DRIVER_ERRORS = (InterfaceError, PostgresError)

logger = logging.getLogger("rmq_async.outbox")

DATABASE_ERRORS: Final[tuple[type[Exception], ...]] = (
    SQLAlchemyError, OSError, TimeoutError, NoThreadError, *_DRIVER_ERRORS,
)  # fmt: skip
"""The errors that a statement may raise because the database is unavailable or busy, refuses the statement, or its driver
cannot start a thread.
"""

_LARGEST: Final = 2**63 - 1
_LEAST_PATIENCE: Final = 10.0
_AT_ONCE: Final = 1000
"""Maximum number of rows that one statement deletes, and maximum number of ids in one statement."""


class OutboxStatus(msgspec.Struct, frozen=True):
    """The state of an outbox.

    Attributes:
        pending: Number of messages that are neither sent nor FAILED. This includes messages in flight.
        oldest_age: Seconds since the oldest pending message was added, or 0.0 if there is none.
        sent: Number of sent messages whose rows are not purged yet.
        failed: Number of messages that are FAILED. They are sent only after a call of ``retry``.
    """

    pending: int
    oldest_age: float
    sent: int
    failed: int


class Sent(msgspec.Struct, frozen=True, gc=False):
    """A row whose message a broker has stored."""

    row: int
    offset_message_id: str
    queue: str
    queue_offset: int

    @classmethod
    def at(cls, row: int, offset_message_id: str, queue: str, queue_offset: int) -> Sent:
        """Return the outcome with values that the columns can hold.

        The broker's strings are cut to the length of their column, and an offset out of range becomes -1, because a refused
        value would prevent the write of all other outcomes.
        """
        offset = queue_offset if -_LARGEST <= queue_offset <= _LARGEST else -1
        return cls(row, printable(offset_message_id)[:LONGEST_ID], printable(queue)[:LONGEST_ID], offset)


class Failure(msgspec.Struct, frozen=True, gc=False):
    """A row whose message could not be sent. It is due again in ``delay`` seconds or, with ``given_up``, it is FAILED."""

    row: int
    delay: float
    last_error: str
    given_up: bool


class Store:
    """The queries of one table for one process.

    Args:
        me: The name under which this process claims rows.
        lease: Seconds for which a claimed row is reserved.
    """

    def __init__(self, engine: AsyncEngine, table: Table, me: str, lease: float) -> None:
        self.dialect = checked_dialect(engine)
        self._arrays = self.dialect == "postgresql"
        if self._arrays:  # with a stricter isolation level of the service, concurrent claims would fail
            engine = engine.execution_options(isolation_level="READ COMMITTED")
        self._engine = engine
        self._table = table
        self._names_table = re.compile(rf"(?<!\w){re.escape(table.name)}(?!\w)")
        self.statements = statements = Statements(table, self.dialect)
        self._claim_except, self._claim_only = statements.claim(only=False), statements.claim(only=True)
        self.me = me
        self.lease = lease
        self.patience = max(lease, _LEAST_PATIENCE)
        """Maximum duration of a transaction in seconds. It is needed because a lost connection to the database may go unnoticed
        for hours.
        """

    @asynccontextmanager
    async def _begin(self, timeout: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Provide a connection in a transaction for at most ``timeout`` seconds."""
        async with asyncio.timeout(timeout):
            with naming_refusals():
                async with self._engine.begin() as connection:
                    yield connection

    @asynccontextmanager
    async def _connect(self, timeout: float | None = None) -> AsyncIterator[AsyncConnection]:
        """Provide a connection for reading for at most ``timeout`` seconds."""
        async with asyncio.timeout(timeout):
            with naming_refusals():
                async with self._engine.connect() as connection:
                    yield connection

    async def create_table(self) -> None:
        async with self._begin() as connection:
            await connection.run_sync(self._table.create, checkfirst=True)

    async def probe(self) -> None:
        """Raise ConfigError if the table is missing or lacks a column of this version."""
        try:
            async with self._connect() as connection:
                await connection.execute(self.statements.probe)
        except (ProgrammingError, OperationalError) as error:
            self.check_is_there(error)
            raise

    def check_is_there(self, error: ProgrammingError | OperationalError) -> None:
        """Raise ConfigError if ``error`` says that the table is missing or lacks a column.

        Return without an error if ``error`` is about another table, because the session may have flushed the user's changes
        before the statement.
        """
        reason, name = reason_of(error), self._table.fullname
        if self._names_table.search(reason) and (
            "no such" in reason or "has no column" in reason or "does not exist" in reason
        ):
            if "column" in reason:
                text = f"table {name} lacks a column of this version ({reason}); migrate it to the columns of outbox_table()"
            else:
                text = f"there is no table {name} ({reason}); await outbox.create_table() creates it"
            raise ConfigError(text) from error

    # -- claiming rows

    async def claim(
        self, limit: int, topics: Collection[str], *, only: bool, in_hand: Collection[int]
    ) -> tuple[list[Held], list[int]]:
        """Claim up to ``limit`` due rows.

        Return the rows in the order of their ids, and the ids of the rows that must be released because they must wait for
        another row with the same key.

        Args:
            only: True claims rows of ``topics``. False claims rows of all other topics.
            in_hand: Rows that this process is sending. A later row with the same key does not have to wait for them.
        """
        until = machine.monotonic() + self.lease
        async with self._begin(self.patience) as connection:
            given = {"limit": limit, "topics": list(topics), "me": self.me, "lease_seconds": self.lease}
            found = (await connection.execute(self._claim_only if only else self._claim_except, given)).mappings().all()
            rows, unreadable = self._read(found, until)
            if unreadable:
                await self._write(connection, self.statements.failed, unreadable, {"me": self.me})
            keyed = [row.id for row in rows if row.key is not None]
            out_of_turn = await self._blocked(connection, keyed, in_hand) if keyed else []
        return rows, out_of_turn

    async def owned(self, rows: Sequence[Held], in_hand: Collection[int]) -> tuple[list[Held], list[int]]:
        """Return the rows that are committed and owned by this process, and the ids of the rows that must wait for other rows
        with the same key.

        Args:
            in_hand: As for ``claim``.
        """
        async with self._connect(self.patience) as connection:
            given = {"ids": [row.id for row in rows], "me": self.me}
            found = {(row.id, row.unique_id) for row in await connection.execute(self.statements.owned, given)}
            ours = [row for row in rows if (row.id, row.message.unique_id) in found]
            keyed = [row.id for row in ours if row.key is not None]
            return ours, await self._blocked(connection, keyed, in_hand) if keyed else []

    async def blocked(self, rows: Collection[int], in_hand: Collection[int]) -> list[int]:
        """Return the ids of the rows that must wait for other rows with the same key.

        Args:
            in_hand: As for ``claim``.
        """
        async with self._connect(self.patience) as connection:
            return await self._blocked(connection, rows, in_hand)

    async def _blocked(self, connection: AsyncConnection, rows: Collection[int], in_hand: Collection[int]) -> list[int]:
        given = {"ids": list(rows), "in_hand": [*in_hand, *rows]}
        return list((await connection.execute(self.statements.blocked, given)).scalars())

    async def body(self, row: int) -> bytes | None:
        """Return the body of a row. Return None if the row was deleted."""
        async with self._connect(self.patience) as connection:
            found: bytes | None = (await connection.execute(self.statements.body, {"row": row})).scalar()
            return found

    def _read(self, found: Iterable[Any], until: float) -> tuple[list[Held], list[Failure]]:
        """Return the rows in the order of their ids, and a failure for each row without a valid message."""
        rows, unreadable = [], []
        for row in found:
            try:
                rows.append(self._held(row, until))
            except Exception as error:  # noqa: BLE001 - no row may keep the others from being sent
                text = printable(error, 1000)
                logger.warning(
                    "row %d of the outbox has no valid message and is FAILED; repair or purge it: %s", row["id"], text
                )
                unreadable.append(Failure(row["id"], 0.0, error_text(error), True))
        return sorted(rows, key=attrgetter("id")), unreadable

    def _held(self, row: Any, until: float) -> Held:
        body = row["body"]
        return Held(row["id"], message_of(row, body or b""), row["size"], row["attempts"], until, body is not None)

    # -- outcomes

    async def record(self, sent: Sequence[Sent], failed: Sequence[Failure], released: Sequence[int]) -> None:
        """Write the outcomes in one transaction."""
        async with self._begin(self.patience) as connection:
            if sent:
                await self._write(connection, self.statements.sent, sent, {})
            if failed:
                await self._write(connection, self.statements.failed, failed, {"me": self.me})
            if released:
                await connection.execute(self.statements.released, {"ids": list(released), "me": self.me})

    async def _write(self, connection: AsyncConnection, statement: Any, rows: Sequence[Any], more: dict[str, Any]) -> None:
        names = rows[0].__struct_fields__
        parameters = {name: name if name == "row" else f"new_{name}" for name in names}
        if self._arrays:
            await connection.execute(
                statement, {new: [getattr(row, name) for row in rows] for name, new in parameters.items()} | more
            )
        else:
            await connection.execute(
                statement, [{new: getattr(row, name) for name, new in parameters.items()} | more for row in rows]
            )

    # -- supervision

    async def stuck(self, age: float, attempts: int, period: float, limit: int, after: int = 0) -> list[StuckMessage]:
        given = {"after": after, "age": age, "most_attempts": attempts, "period": period, "limit": limit}
        async with self._begin(self.patience) as connection:
            found = (await connection.execute(self.statements.stuck, given)).mappings().all()
        rows = (StuckMessage(**{**row, "keys": tuple((row["keys"] or "").split())}) for row in found)
        return sorted(rows, key=attrgetter("id"))

    async def status(self) -> OutboxStatus:
        async with self._connect() as connection:
            found = (await connection.execute(self.statements.totals)).one()
        return OutboxStatus(found.pending, max(0.0, found.oldest_age or 0.0), found.sent, found.failed)

    async def anything_to_send(self) -> bool:
        """Return whether any unsent row can be sent, now or by a later attempt. Such a row is neither FAILED nor behind a
        FAILED row.
        """
        async with self._connect() as connection:
            found: bool = (await connection.execute(self.statements.anything_to_send)).scalar_one()
            return bool(found)

    async def behind_failed(self) -> int:
        """Return the number of rows that wait until a FAILED row with the same key is retried or deleted."""
        async with self._connect() as connection:
            found: int = (await connection.execute(self.statements.behind_failed)).scalar_one()
            return found

    async def retry(self, rows: Collection[int] | None) -> int:
        """Make rows due, and return their number.

        Args:
            rows: Ids of rows. None stands for all FAILED rows.
        """
        async with self._begin() as connection:
            if rows is None:
                return _count(await connection.execute(self.statements.retry_all))
            chosen, changed = list(rows), 0
            for first in range(0, len(chosen), _AT_ONCE):
                given = {"ids": chosen[first : first + _AT_ONCE]}
                changed += _count(await connection.execute(self.statements.retry, given))
            return changed

    async def purge(self, age: float, *, failed: bool) -> int:
        statement = self.statements.purge_failed if failed else self.statements.purge
        deleted = 0
        while True:
            async with self._begin() as connection:
                count = _count(await connection.execute(statement, {"age": age, "limit": _AT_ONCE}))
            deleted += count
            if count < _AT_ONCE:
                return deleted


def reason_of(error: BaseException) -> str:
    """Return the message of an error on one line, without the statement and its parameters."""
    said = getattr(error, "orig", None) or error
    text = str(said.__cause__ or said).strip() or type(said).__name__
    return printable(text.splitlines()[0], 500)


def checked_dialect(engine: AsyncEngine) -> str:
    """Return the name of the engine's dialect.

    Raises:
        ConfigError: If an outbox cannot use the engine.
    """
    check_engine(engine, "an outbox")
    if isinstance(engine.pool, StaticPool):
        raise ConfigError(
            "the engine has a single connection (StaticPool, for a SQLite database in memory), so a commit of the outbox "
            "would commit your transactions too; use a SQLite file"
        )
    return engine.dialect.name


def _count(result: CursorResult[Any]) -> int:
    return result.rowcount
