"""No message lost between a commit to the database and the broker: messages are rows of the transaction that they tell of.

    outbox = Outbox(engine, producer)
    async with outbox, sessions.begin() as session:
        session.add(order)
        await outbox.add(session, Message("OrderTopic", b"order 17"))

Needs the extra ``outbox`` (SQLAlchemy 2, aiosqlite, asyncpg).
"""

from __future__ import annotations

try:
    import sqlalchemy.ext.asyncio  # noqa: F401
except ImportError as missing:
    raise ImportError('rmq_async.outbox needs a package: pip install "rmq-async[outbox]"') from missing

from .outbox import Outbox
from .rows import StuckMessage
from .store import OutboxStatus
from .table import outbox_table

__all__ = ["Outbox", "OutboxStatus", "StuckMessage", "outbox_table"]
