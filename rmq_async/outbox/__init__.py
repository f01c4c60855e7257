"""Transactional outbox: a message is a row of the database transaction that it belongs to, and is sent after its commit.

    outbox = Outbox(engine, producer)
    async with outbox, sessions.begin() as session:
        session.add(order)
        await outbox.add(session, Message("OrderTopic", b"order 17"))

Needs the extra ``outbox`` (SQLAlchemy 2, aiosqlite, asyncpg). ``__all__`` are the public names; the others are for ``rmq outbox``.
"""

from __future__ import annotations

try:
    import sqlalchemy.ext.asyncio  # noqa: F401
except ImportError as missing:
    raise ImportError('rmq_async.outbox needs a package: pip install "rmq-async[outbox]"') from missing

from .outbox import Outbox
from .rows import StuckMessage
from .store import OutboxStatus
from .store import Store as Store
from .store import reason_of as reason_of
from .table import outbox_table

__all__ = ["Outbox", "OutboxStatus", "StuckMessage", "outbox_table"]
