"""A transactional outbox: a message is a row that is added in a database transaction, and is sent after its commit.

    outbox = Outbox(engine, producer)
    async with outbox, sessions.begin() as session:
        session.add(order)
        await outbox.add(session, Message("OrderTopic", b"order 17"))

Needs the extra ``outbox`` (SQLAlchemy 2, aiosqlite, asyncpg). The names in ``__all__`` are public. The other names are for
``rmq outbox``.
"""

try:
    import sqlalchemy.ext.asyncio  # noqa: F401
except ImportError as missing:
    raise ImportError(f'rmq_async.outbox cannot import SQLAlchemy ({missing}): pip install "rmq-async[outbox]"') from missing

from .outbox import Outbox
from .rows import StuckMessage
from .store import DATABASE_ERRORS as DATABASE_ERRORS
from .store import OutboxStatus
from .store import Store as Store
from .store import reason_of as reason_of
from .table import outbox_table

__all__ = ["Outbox", "OutboxStatus", "StuckMessage", "outbox_table"]
