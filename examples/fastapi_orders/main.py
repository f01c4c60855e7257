"""The service and its consumer in one process, with a broker in memory that has a bad day. (Needs httpx too.)"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory

import consumer
import httpx
import service
from database import create_tables, open_database
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import async_sessionmaker

import rmq_async
from rmq_async import Admin
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_protocol.constants import RequestCode, ResponseCode

SEND = RequestCode.SEND_MESSAGE_V2


@asynccontextmanager
async def shop() -> AsyncIterator[httpx.AsyncClient]:
    """The service, with ten apples in stock."""
    engine = service.engine_of_service()
    await create_tables(engine, service.Base)
    async with async_sessionmaker(engine).begin() as session:
        session.add(service.Stock(article="apple", pieces=10))
    await engine.dispose()
    asgi = httpx.ASGITransport(service.app)
    async with service.lifespan(service.app), httpx.AsyncClient(transport=asgi, base_url="http://service") as client:
        yield client


@asynccontextmanager
async def shipping(url: str, namesrv: str) -> AsyncIterator[consumer.Sessions]:
    """The consumer, and its database to look into."""
    engine = open_database(url)
    await create_tables(engine, consumer.Base)
    sessions = async_sessionmaker(engine)
    consuming = asyncio.create_task(consumer.consume(sessions, namesrv))
    try:
        yield sessions
    finally:
        consuming.cancel()
        await asyncio.wait([consuming])
        await engine.dispose()


async def order(client: httpx.AsyncClient, pieces: int) -> None:
    answer = await client.post("/orders", json={"article": "apple", "pieces": pieces})
    print(f"{pieces} apples: {answer.status_code} {answer.json()}")


async def pending(client: httpx.AsyncClient) -> int:
    found: int = (await client.get("/outbox")).json()["pending"]
    return found


async def all_sent(client: httpx.AsyncClient) -> None:
    async def nothing_pending() -> bool:
        return await pending(client) == 0

    await until(nothing_pending)


async def shipped(sessions: consumer.Sessions, messages: int) -> list[int]:
    """Return the shipped orders when `messages` messages, also copies, are read."""

    async def all_read() -> bool:
        async with sessions() as session:
            return (await session.scalar(select(func.sum(consumer.Position.offset))) or 0) >= messages

    await until(all_read)
    async with sessions() as session:
        return list(await session.scalars(select(consumer.Shipment.order).order_by(consumer.Shipment.order)))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - it is in a database
            await asyncio.sleep(0.05)


async def main() -> None:
    with TemporaryDirectory() as place:
        async with EmbeddedRocketMQ() as server:
            os.environ["NAMESRV_ADDR"] = server.namesrv
            os.environ["DATABASE_URL"] = f"sqlite+aiosqlite:///{place}/orders.db"
            async with Admin(namesrv=server.namesrv) as admin:
                await admin.create_topic(service.TOPIC, queues=2)
            database = f"sqlite+aiosqlite:///{place}/shipping.db"
            async with shop() as client, shipping(database, server.namesrv) as sessions:
                await order(client, 4)
                await order(client, 7)  # rolled back, with its message
                await all_sent(client)

                server.fail_next(ResponseCode.FLUSH_DISK_TIMEOUT, request=SEND)  # stored, and not confirmed: sent again
                await order(client, 3)
                await all_sent(client)
                print(f"{len(server.messages(service.TOPIC))} messages, of 2 orders")

                server.fail_next(ResponseCode.SYSTEM_BUSY, 1000, request=SEND)
                await order(client, 2)
                print(f"the broker refuses, {await pending(client)} message waits")
                server.fail_next(ResponseCode.SYSTEM_BUSY, 0, request=SEND)
                await all_sent(client)

                messages = len(server.messages(service.TOPIC))
                print(f"{messages} messages, shipped: {await shipped(sessions, messages)}")


if __name__ == "__main__":
    rmq_async.run(main())
