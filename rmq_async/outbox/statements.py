"""The SQL statements of an outbox, which are built once with bound parameters.

In PostgreSQL, rows are claimed with FOR UPDATE SKIP LOCKED. Lists of rows are passed as arrays, so the text of a statement, and
therefore the server's prepared plan, is the same for any number of rows. SQLite has one writer at a time, so an UPDATE with a
condition on the state that it changes is a compare-and-set. In SQLite, many rows are written by ``executemany`` in one
transaction, and lists are passed as JSON strings.

A row is *due* when ``next_attempt`` has passed: either the row is PENDING, or its sender's lease has expired. A row with a
sharding key waits for all earlier rows with that key and topic that are neither SENT nor due. If two claims run concurrently,
one of them may skip the first row of a key, because the other has locked it, and may get the second row. Therefore, ``blocked``
checks again after a claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from .._database import UtcDateTime, seconds_from_now, seconds_since
from .rows import LONGEST_ID, SMALL_BODY
from .table import FAILED, PENDING, SENDING, SENT, literal

_MESSAGE: Final = (
    "topic", "tags", "keys", "body", "properties", "sharding_key", "flag", "wait_store", "delay_level", "deliver_at", "unique_id",
)  # fmt: skip

_ME: Final = sa.bindparam("me", type_=sa.String)


def _ago(name: str) -> sa.ColumnElement[Any]:
    """Return the expression for the current time minus the parameter ``name`` (in seconds).

    The database evaluates it once, because it can use an index only with a constant.
    """
    return sa.select(seconds_from_now(-sa.bindparam(name, type_=sa.Float))).scalar_subquery()


def _listed(name: str) -> sa.Select[Any]:
    """Return the query that yields the values of a list in SQLite.

    The list is passed as one parameter, a JSON string, because the number of parameters is limited.
    """
    return sa.select(sa.func.json_each(sa.bindparam(name, type_=_JsonList)).table_valued("value").c.value)


class _JsonList(sa.TypeDecorator[list[Any]]):
    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: list[Any] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()


def _type_of(table: sa.Table, name: str) -> TypeEngine[Any]:
    """Return the type of a column's values in statements. For a time, that is UtcDateTime."""
    return UtcDateTime() if isinstance(table.c[name].type, sa.DateTime) else table.c[name].type


def _now() -> seconds_from_now:
    return seconds_from_now(sa.literal_column("0", sa.Float))


class Statements:
    """The statements of one table and one kind of database ("postgresql" or "sqlite")."""

    def __init__(self, table: sa.Table, dialect: str) -> None:
        self._table = table
        self._arrays = dialect == "postgresql"
        self.add_sending = self._add(SENDING)
        self.add_pending = self._add(PENDING)
        self.owned = self._owned()
        self.blocked = self._blocked()
        self.body: sa.Select[Any] = sa.select(table.c.body).where(table.c.id == sa.bindparam("row"))
        self.sent = self._sent()
        self.failed = self._failed()
        self.released = self._released()
        self.stuck = self._stuck()
        self.totals = self._totals()
        self.anything_to_send, self.behind_failed = self._left()
        self.retry, self.retry_all = self._retry()
        self.purge = self._purge(SENT)
        self.purge_failed = self._purge(FAILED)
        self.probe: sa.Select[Any] = sa.select(table.c.id, table.c.alerted, table.c.queue_offset).limit(1)

    # -- adding rows

    def _add(self, state: str) -> sa.Insert:
        table = self._table
        lease = seconds_from_now(sa.bindparam("lease_seconds", type_=sa.Float)) if state == SENDING else None
        return sa.insert(table).values(
            **{name: sa.bindparam(name, type_=_type_of(table, name)) for name in _MESSAGE},
            state=state,
            owner=sa.bindparam("owner", type_=sa.String) if state == SENDING else None,
            lease=lease,
            next_attempt=_now() if lease is None else lease,
            attempts=0,
            created=_now(),
            updated=_now(),
        )

    # -- claiming rows

    def claim(self, *, only: bool) -> sa.Update:
        """Return the statement that claims up to ``limit`` due rows. With ``only``, it claims rows of the topics in ``topics``;
        otherwise, it claims rows of all other topics.
        """
        table, wanted = self._table, self._table.c.topic
        first = table.alias("first")
        waits = self._is_behind(first, sa.or_(first.c.state == literal(FAILED), first.c.next_attempt > _now()))
        among = self._among if only else self._not_among
        due = (
            sa.select(table.c.id)
            .where(
                table.c.state != literal(SENT),
                table.c.state != literal(FAILED),
                table.c.next_attempt <= _now(),
                among(wanted, "topics", sa.String(255)),
                sa.or_(table.c.sharding_key.is_(None), ~waits),
            )
            .order_by(table.c.id)
            .limit(sa.bindparam("limit", type_=sa.BigInteger))
        )
        lease = seconds_from_now(sa.bindparam("lease_seconds", type_=sa.Float))
        taken = sa.update(table).values(state=SENDING, owner=_ME, lease=lease, next_attempt=lease, updated=_now())
        taken = taken.where(self._is_one_of(due, "due"))
        size = sa.func.length(table.c.body)
        body = sa.case((size <= SMALL_BODY, table.c.body), else_=None)
        columns = [sa.type_coerce(table.c[name], _type_of(table, name)).label(name) for name in _MESSAGE if name != "body"]
        return taken.returning(table.c.id, table.c.attempts, size.label("size"), body.label("body"), *columns)

    def _owned(self) -> sa.Select[Any]:
        """Return the query for the rows of ``ids`` that are committed and owned by ``me``.

        It also returns the unique ids of their messages, because SQLite reuses the id of a row that was rolled back.
        """
        table = self._table
        return sa.select(table.c.id, table.c.unique_id).where(self._among(table.c.id, "ids", sa.BigInteger()), self._is_mine())

    def _blocked(self) -> sa.Select[Any]:
        """Return the query for the rows of ``ids`` that are behind an unsent row with the same key, if that row is not in
        ``in_hand``.
        """
        table = self._table
        first = table.alias("first")
        return sa.select(table.c.id).where(
            self._among(table.c.id, "ids", sa.BigInteger()),
            table.c.sharding_key.is_not(None),
            self._is_behind(first, self._not_among(first.c.id, "in_hand", sa.BigInteger())),
        )

    # -- outcomes

    def _sent(self) -> sa.Update:
        """Return the statement that marks rows as SENT, whichever process owns them, because their messages are stored."""
        table = self._table
        values = ("offset_message_id", sa.String(LONGEST_ID)), ("queue", sa.String(255)), ("queue_offset", sa.BigInteger())
        row, given = self._many("sent", values)
        changed = sa.update(table).where(row, table.c.state != literal(SENT))
        return changed.values(
            state=SENT, owner=None, lease=None, attempts=table.c.attempts + 1, next_attempt=_now(), updated=_now(), **given
        )

    def _failed(self) -> sa.Update:
        """Return the statement that writes failures of rows that ``me`` still owns.

        The parameter ``delay`` is the number of seconds until a row is due again.
        """
        table = self._table
        values = ("delay", sa.Float()), ("last_error", sa.Text()), ("given_up", sa.Boolean())
        row, given = self._many("failed", values)
        changed = sa.update(table).where(row, self._is_mine())
        return changed.values(
            state=sa.case((given["given_up"], FAILED), else_=PENDING),
            owner=None,
            lease=None,
            attempts=table.c.attempts + 1,
            next_attempt=seconds_from_now(given["delay"]),
            last_error=given["last_error"],
            updated=_now(),
        )

    def _released(self) -> sa.Update:
        """Return the statement that makes claimed rows due again if their send has not begun."""
        table = self._table
        chosen = sa.update(table).where(self._among(table.c.id, "ids", sa.BigInteger()), self._is_mine())
        return chosen.values(state=PENDING, owner=None, lease=None, next_attempt=_now(), updated=_now())

    # -- supervision

    def _stuck(self) -> sa.Update:
        """Return the statement that marks up to ``limit`` stuck rows with ids above ``after`` as reported, and that returns
        these rows.
        """
        table = self._table
        again = seconds_from_now(-sa.bindparam("period", type_=sa.Float))
        found = (
            sa.select(table.c.id)
            .where(
                table.c.state != literal(SENT),
                table.c.id > sa.bindparam("after", type_=sa.BigInteger),
                sa.or_(
                    table.c.created <= seconds_from_now(-sa.bindparam("age", type_=sa.Float)),
                    table.c.attempts >= sa.bindparam("most_attempts", type_=sa.BigInteger),
                    table.c.state == literal(FAILED),
                ),
                sa.or_(table.c.alerted.is_(None), table.c.alerted <= again),
            )
            .order_by(table.c.id)
            .limit(sa.bindparam("limit", type_=sa.BigInteger))
        )
        marked = sa.update(table).values(alerted=_now()).where(self._is_one_of(found, "found"))
        names = ("id", "topic", "keys", "attempts", "last_error", "state", "unique_id")
        return marked.returning(*(table.c[name] for name in names), seconds_since(table.c.created).label("age"))

    def _totals(self) -> sa.Select[*tuple[Any, ...]]:
        """Return a single query for all counts. With separate statements, a row that is sent between two of them would be
        counted twice.
        """
        table = self._table
        sent = table.alias("sent")
        failed = table.c.state == literal(FAILED)
        return sa.select(
            sa.func.count().filter(~failed).label("pending"),
            sa.func.max(seconds_since(table.c.created)).filter(~failed).label("oldest_age"),
            sa.func.count().filter(failed).label("failed"),
            sa.select(sa.func.count()).select_from(sent).where(sent.c.state == literal(SENT)).scalar_subquery().label("sent"),
        ).where(table.c.state != literal(SENT))

    def _left(self) -> tuple[sa.Select[*tuple[Any, ...]], sa.Select[*tuple[Any, ...]]]:
        """Return two statements. The first one tells whether any row can be sent, and the second one counts the rows that wait
        behind a FAILED row with the same key.
        """
        table = self._table
        first = table.alias("first")
        behind = self._is_behind(first, first.c.state == literal(FAILED))
        pending = sa.and_(table.c.state != literal(SENT), table.c.state != literal(FAILED))
        sendable = sa.select(table.c.id).where(pending, sa.or_(table.c.sharding_key.is_(None), ~behind))
        left = sa.select(sa.func.count(table.c.id)).where(pending, table.c.sharding_key.is_not(None), behind)
        return sa.select(sendable.exists()), left

    def _retry(self) -> tuple[sa.Update, sa.Update]:
        table = self._table
        again = (
            sa.update(table)
            .where(table.c.state.in_((FAILED, PENDING)))
            .values(state=PENDING, attempts=0, next_attempt=_now(), alerted=None, updated=_now())
        )
        return again.where(self._among(table.c.id, "ids", sa.BigInteger())), again.where(
            table.c.state == literal(FAILED), table.c.state != literal(SENT)
        )

    def _purge(self, state: str) -> sa.Delete:
        table = self._table
        old = sa.select(table.c.id).where(table.c.state == literal(state), table.c.updated <= _ago("age"))
        if state == SENT:
            old = old.order_by(table.c.updated)
        else:
            # SQLite does not infer this condition, but needs it to use the index
            old = old.where(table.c.state != literal(SENT))
        old = old.limit(sa.bindparam("limit", type_=sa.BigInteger))
        if self._arrays:
            old = old.with_for_update(skip_locked=True)
        return sa.delete(table).where(table.c.id.in_(old))

    # -- conditions

    def _is_mine(self) -> sa.ColumnElement[bool]:
        return sa.and_(self._table.c.owner == _ME, self._table.c.state == SENDING)

    def _is_behind(self, first: sa.FromClause, condition: sa.ColumnElement[bool]) -> sa.Exists:
        """Return the condition that there is an earlier row (``first``) with the same key and topic that is not SENT and meets
        ``condition``.
        """
        table = self._table
        before = (
            first.c.sharding_key == table.c.sharding_key,
            first.c.topic == table.c.topic,
            first.c.id < table.c.id,
            first.c.state != literal(SENT),  # even where this condition is redundant, it makes the planner use the index
            condition,
        )
        return sa.exists(sa.select(sa.literal(1)).select_from(first).where(*before).correlate(table))

    def _is_one_of(self, found: sa.Select[Any], name: str) -> sa.ColumnElement[bool]:
        """Return the condition that a query finds the row. PostgreSQL skips rows that other transactions have locked."""
        row = self._table.c.id
        return row == found.with_for_update(skip_locked=True).cte(name).c.id if self._arrays else row.in_(found)

    def _among(self, of: sa.ColumnElement[Any], name: str, kind: TypeEngine[Any]) -> sa.ColumnElement[bool]:
        if self._arrays:
            return of == sa.any_(sa.bindparam(name, type_=sa.ARRAY(kind)))
        return of.in_(_listed(name))

    def _not_among(self, of: sa.ColumnElement[Any], name: str, kind: TypeEngine[Any]) -> sa.ColumnElement[bool]:
        if self._arrays:
            return of != sa.all_(sa.bindparam(name, type_=sa.ARRAY(kind)))
        return of.not_in(_listed(name))

    def _many(self, name: str, columns: Sequence[tuple[str, TypeEngine[Any]]]) -> tuple[sa.ColumnElement[bool], dict[str, Any]]:
        """Return the condition that joins the table to rows given as parameters (``row`` for their ids, ``new_<column>`` for
        their values), and the expressions of these values by column.
        """
        row = self._table.c.id
        if not self._arrays:
            return row == sa.bindparam("row", type_=sa.BigInteger), {
                each: sa.bindparam(f"new_{each}", type_=kind) for each, kind in columns
            }
        lists = [
            sa.bindparam("row", type_=sa.ARRAY(sa.BigInteger())),
            *(sa.bindparam(f"new_{each}", type_=sa.ARRAY(kind)) for each, kind in columns),
        ]
        rows = (
            sa.func.unnest(*lists).table_valued("row", *(sa.column(each, kind) for each, kind in columns)).render_derived(name)
        )
        return row == rows.c.row, {each: rows.c[each] for each, _ in columns}
