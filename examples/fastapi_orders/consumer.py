"""Ships what was ordered, each order once, also if its message was sent twice or this process was killed.

The work on a message, its unique id and the offset after it are committed together: an id that is there already is a copy's, and
the offsets say where to go on. ``python consumer.py`` makes the tables and reads for ever; one process at a time, which
a supervisor starts again where it ends. Settings: SHIPPING_DATABASE_URL, NAMESRV_ADDR.
"""

import logging
import os
from contextlib import aclosing
from datetime import datetime

import msgspec
from database import create_tables, open_database
from sqlalchemy import BigInteger, DateTime, String, Text, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rmq_async
from rmq_async import MessageExt, MessageQueue, PullConsumer

TOPIC = "OrderTopic"
Sessions = async_sessionmaker[AsyncSession]

logger = logging.getLogger("shipping")


class Base(DeclarativeBase):
    """The tables of this process; the database is its own, or that of the service it is part of."""


class Handled(Base):
    """A message whose work is done. ``problem``: why there was none to do; its topic has it by ``unique_id``."""

    __tablename__ = "handled"

    unique_id: Mapped[str] = mapped_column(String(255), primary_key=True)
    problem: Mapped[str | None] = mapped_column(Text)
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now(), index=True)


class Position(Base):
    """The offset after the last message of a queue whose work is done."""

    __tablename__ = "positions"

    topic: Mapped[str] = mapped_column(String(255), primary_key=True)
    broker: Mapped[str] = mapped_column(String(255), primary_key=True)
    queue: Mapped[int] = mapped_column(primary_key=True)
    offset: Mapped[int] = mapped_column(BigInteger)


class Shipment(Base):
    __tablename__ = "shipments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]
    article: Mapped[str] = mapped_column(String(100))
    pieces: Mapped[int]


class Placed(msgspec.Struct):
    """The body of a message."""

    order: int
    article: str
    pieces: int


async def consume(sessions: Sessions, namesrv: str | None = None) -> None:
    """Until it is cancelled. Raises what the database raises, and OffsetRangeError where retention took messages unread: find out
    which before going on."""
    async with PullConsumer("shipping", namesrv=namesrv) as consumer:
        positions = await where_to_go_on(sessions, consumer)
        async with aclosing(consumer.read(TOPIC, start=positions, end=None)) as messages:  # new queues of the topic too
            async for message in messages:
                await handle(sessions, message)


async def where_to_go_on(sessions: Sessions, consumer: PullConsumer) -> dict[MessageQueue, int]:
    async with sessions() as session:
        kept = (await session.scalars(select(Position).where(Position.topic == TOPIC))).all()
    offsets = {(position.broker, position.queue): position.offset for position in kept}
    positions = {}
    for queue in await consumer.queues(TOPIC):
        offset = offsets.get((queue.broker_name, queue.queue_id))
        positions[queue] = await consumer.min_offset(queue) if offset is None else offset
    return positions


async def handle(sessions: Sessions, message: MessageExt) -> bool:
    """One transaction; False for a copy. Two processes that handle copies at once get one primary key: one of them fails."""
    async with sessions.begin() as session:
        new = await session.get(Handled, message.msg_id) is None
        if new:
            session.add(Handled(unique_id=message.msg_id, problem=ship(session, message)))
        queue = message.queue
        after = message.queue_offset + 1
        await session.merge(Position(topic=queue.topic, broker=queue.broker_name, queue=queue.queue_id, offset=after))
    return new


def ship(session: AsyncSession, message: MessageExt) -> str | None:
    """The work, in the session's transaction. What it does elsewhere it may do twice; for messages there is an outbox.

    Returns why it cannot be done, for a message that will not be better tomorrow: those behind it do not wait for it.
    """
    try:
        placed = msgspec.json.decode(message.body, type=Placed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        logger.warning("message %s is no order: %s", message.msg_id, error)
        return str(error)
    session.add(Shipment(order=placed.order, article=placed.article, pieces=placed.pieces))
    return None


async def main() -> None:
    engine = open_database(os.environ.get("SHIPPING_DATABASE_URL", "sqlite+aiosqlite:///shipping.db"))
    try:
        await create_tables(engine, Base)
        await consume(async_sessionmaker(engine))
    finally:
        await engine.dispose()


if __name__ == "__main__":
    rmq_async.run(main())
