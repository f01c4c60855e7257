"""Hands rows from a user's session to the sender after the commit of their transaction.

SQLAlchemy's events report commits and rollbacks, including commits and rollbacks of savepoints. An event only triggers the
check: before a row is sent, a query confirms that the database has the row. The events for rollbacks only drop rows earlier
than that query would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

from .rows import Held

_KEY: Final = "rmq_async.outbox"


class Additions:
    """The rows that one session has added to outboxes and has not committed yet."""

    def __init__(self, session: Session) -> None:
        self._added: list[tuple[Callable[[list[Held]], None], Held, SessionTransaction | None]] = []
        event.listen(session, "after_commit", self._committed)
        event.listen(session, "after_soft_rollback", self._rolled_back)
        event.listen(session, "after_transaction_end", self._ended)

    @classmethod
    def of(cls, session: Session) -> Additions:
        found: Additions | None = session.info.get(_KEY)
        if found is None:
            found = session.info[_KEY] = cls(session)
        return found

    @classmethod
    def waiting(cls, session: Session) -> int:
        """Return the number of rows that wait for the session's commit."""
        found: Additions | None = session.info.get(_KEY)
        return 0 if found is None else len(found._added)  # noqa: SLF001 - its own class

    def add(self, session: Session, row: Held, then: Callable[[list[Held]], None]) -> None:
        """Add a row.

        Args:
            then: Called once after the commit, with all rows of the transaction that were added with the same ``then``.
        """
        self._added.append((then, row, session.get_nested_transaction() or session.get_transaction()))

    def _committed(self, session: Session) -> None:
        if not self._added or session.in_nested_transaction():  # the release of a savepoint does not commit
            return
        added, self._added = self._added, []
        by_outbox: dict[Callable[[list[Held]], None], list[Held]] = {}
        for then, row, _ in added:
            by_outbox.setdefault(then, []).append(row)
        for then, rows in by_outbox.items():
            then(rows)

    def _rolled_back(self, session: Session, rolled_back: SessionTransaction) -> None:
        if self._added:
            self._added = [each for each in self._added if not _inside(each[2], rolled_back)]

    def _ended(self, session: Session, ended: SessionTransaction) -> None:
        if ended.parent is None:  # closed without a commit; SQLAlchemy does not report that as a rollback
            self._added.clear()


def _inside(transaction: Any, outer: SessionTransaction) -> bool:
    while transaction is not None:
        if transaction is outer:
            return True
        transaction = transaction.parent
    return False
