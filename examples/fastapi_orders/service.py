"""Takes orders: each is saved in one transaction with the message that announces it, both or neither.

``python service.py`` makes the tables, ``uvicorn service:app --workers 4`` serves. Settings: DATABASE_URL, NAMESRV_ADDR.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
from database import create_tables, open_database
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import String, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import rmq_async
from rmq_async import Message, Producer
from rmq_async.outbox import Outbox, outbox_table

TOPIC = "OrderTopic"
Sessions = async_sessionmaker[AsyncSession]


class Base(DeclarativeBase):
    """The tables of the service; Alembic's ``target_metadata`` is ``Base.metadata``."""


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str] = mapped_column(String(100))
    pieces: Mapped[int]


class Stock(Base):
    __tablename__ = "stock"

    article: Mapped[str] = mapped_column(String(100), primary_key=True)
    pieces: Mapped[int]


outbox_table(Base.metadata)


def engine_of_service() -> AsyncEngine:
    return open_database(os.environ.get("DATABASE_URL", "sqlite+aiosqlite:///orders.db"))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    engine = engine_of_service()
    try:
        # The outbox starts the producer as soon as a name server answers: orders are taken while the cluster is away, too.
        async with Outbox(engine, Producer("orders")) as outbox:
            app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
            app.state.outbox = outbox
            yield
    finally:
        await engine.dispose()


app = FastAPI(lifespan=lifespan)


def sessions_of(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


def outbox_of(request: Request) -> Outbox:
    outbox: Outbox = request.app.state.outbox
    return outbox


class NewOrder(BaseModel):
    article: str = Field(min_length=1, max_length=100)
    pieces: int = Field(gt=0, le=1000)


@app.post("/orders", status_code=201)
async def place_order(
    new: NewOrder, sessions: Annotated[Sessions, Depends(sessions_of)], outbox: Annotated[Outbox, Depends(outbox_of)]
) -> dict[str, int]:
    """The answer 201 leaves after the commit; the message follows, also after failures of brokers."""
    async with sessions.begin() as session:  # committed at its end, rolled back by an exception
        order = Order(article=new.article, pieces=new.pieces)
        session.add(order)
        await session.flush()  # the database gives the order its id
        await outbox.add(session, message_of(order))
        await take_from_stock(session, order)
    return {"order": order.id}


def message_of(order: Order) -> Message:
    """Messages of an order are sent one after the other: a later one of this order keeps its place."""
    key = f"order-{order.id}"
    body = msgspec.json.encode({"order": order.id, "article": order.article, "pieces": order.pieces})
    return Message(TOPIC, body, tags="placed", keys=key, sharding_key=key)


async def take_from_stock(session: AsyncSession, order: Order) -> None:
    enough = (Stock.article == order.article) & (Stock.pieces >= order.pieces)
    left = await session.scalar(update(Stock).where(enough).values(pieces=Stock.pieces - order.pieces).returning(Stock.pieces))
    if left is None:
        raise HTTPException(409, f"there are not {order.pieces} of {order.article}")


@app.get("/outbox")
async def status(outbox: Annotated[Outbox, Depends(outbox_of)]) -> dict[str, Any]:
    """For a monitor: ``failed`` above 0 and an ``oldest_age`` that grows need somebody. No reason to restart the service."""
    return msgspec.structs.asdict(await outbox.status())


async def main() -> None:
    engine = engine_of_service()
    await create_tables(engine, Base)
    await engine.dispose()


if __name__ == "__main__":
    rmq_async.run(main())
