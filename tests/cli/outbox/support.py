"""The outbox of a service that does not run, and relays on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from rmq_async import Message, Producer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox

from ..support import start

NOWHERE = "127.0.0.1:1"
TOO_LARGE = 4 * 1024 * 1024 + 1
"""Bytes that a relay refuses for good."""


class Table:
    """The outbox of a service that does not run."""

    def __init__(self, url: str, name: str = "rmq_outbox") -> None:
        self.url = url.replace("+aiosqlite", "").replace("+asyncpg", "")
        self.name = name
        self.engine_url = url

    async def add(self, *messages: Message) -> list[int]:
        engine = create_async_engine(self.engine_url, poolclass=NullPool)
        producer = Producer("service", namesrv=NOWHERE, max_message_size=2 * TOO_LARGE)
        outbox = Outbox(engine, producer, table=self.name)
        await outbox.create_table()
        async with engine.begin() as connection:
            return [await outbox.add(connection, message) for message in messages]

    async def execute(self, statement: str) -> None:
        engine = create_async_engine(self.engine_url, poolclass=NullPool)
        async with engine.begin() as connection:
            await connection.execute(text(statement))

    async def fail(self, row: int, attempts: int = 1) -> None:
        values = f"state = 'FAILED', attempts = {attempts}, last_error = 'refused'"
        await self.execute(f"UPDATE {self.name} SET {values} WHERE id = {row}")

    async def states(self) -> list[tuple[str, Any]]:
        """State and owner of each row."""
        engine = create_async_engine(self.engine_url, poolclass=NullPool)
        async with engine.connect() as connection:
            found = await connection.execute(text(f"SELECT state, owner FROM {self.name} ORDER BY id"))
            return [(row.state, row.owner) for row in found]


def some(count: int, topic: str = "T", **settings: Any) -> list[Message]:
    return [Message(topic, b"%d" % number, **settings) for number in range(count)]


def bodies(server: EmbeddedRocketMQ) -> list[bytes]:
    return sorted(message.body for message in server.messages("T"))


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def relay(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A relay that is there until the test ends it, and no longer than the test."""
    process = await start("outbox", "relay", *arguments)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def line_with(stream: asyncio.StreamReader | None, name: str) -> dict[str, Any]:
    """The first JSON line that has this field."""
    assert stream is not None
    async with asyncio.timeout(60):
        while True:
            record: dict[str, Any] = json.loads(await stream.readline())
            if name in record:
                return record
