"""What tests of outboxes have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import MetaData, text
from sqlalchemy.ext.asyncio import AsyncEngine

from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.outbox import Outbox, OutboxStatus, outbox_table
from rmq_async.outbox.relay import Relay
from rmq_async.outbox.store import Store

from ..support.databases import Sessions, on_postgresql, on_sqlite, prepare_sqlite

__all__ = [
    "Looks", "Sessions", "bodies", "earlier",
    "on_postgresql", "on_sqlite", "prepare_sqlite", "relay_of", "rows", "settled", "store_of", "until",
]  # fmt: skip


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


async def settled(outbox: Outbox, seconds: float = 60.0) -> OutboxStatus:
    """The status once nothing is pending."""

    async def nothing_pending() -> bool:
        return (await outbox.status()).pending == 0

    await until(nothing_pending, seconds)
    return await outbox.status()


class Looks:
    """Counts how often relays ask the database by ``method`` of ``Store``: at first for due rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        self.begun = self.ended = 0
        ask = getattr(Store, method)

        async def counted(*given: Any, **more: Any) -> Any:
            self.begun += 1
            try:
                return await ask(*given, **more)
            finally:
                self.ended += 1

        monkeypatch.setattr(Store, method, counted)

    async def more(self, count: int = 3) -> None:
        """Waits for that many looks from now on; one that is under way does not count."""
        enough = self.begun + count
        await until(lambda: self.ended >= enough)

    async def beside(self, engine: AsyncEngine) -> None:
        """Waits for looks beside an open transaction. SQLite has one writer: there the first look waits for the end of that."""
        if engine.dialect.name == "sqlite":
            await until(lambda: self.begun > self.ended)
        else:
            await self.more()


async def rows(engine: AsyncEngine, table: str) -> list[Any]:
    """Whole rows, by id."""
    async with engine.connect() as connection:
        return list((await connection.execute(text(f"SELECT * FROM {table} ORDER BY id"))).mappings())


async def earlier(engine: AsyncEngine, table: str, *columns: str, seconds: int = 3600) -> None:
    """Sets times of all rows back, as if these seconds had passed."""
    there = (
        "{} - make_interval(secs => {})"
        if engine.dialect.name == "postgresql"
        else "strftime('%Y-%m-%d %H:%M:%f', {}, '-{} seconds')"
    )
    changes = ", ".join(f"{column} = {there.format(column, seconds)}" for column in columns)
    async with engine.begin() as connection:
        await connection.execute(text(f"UPDATE {table} SET {changes}"))


def store_of(engine: AsyncEngine, table: str, *, owner: str = "another", lease: float = 60.0) -> Store:
    """What an outbox on the table asks the database by, for an owner of its own."""
    return Store(engine, outbox_table(MetaData(), table), owner, lease)


def relay_of(outbox: Outbox) -> Relay:
    """The loops of an outbox that runs."""
    assert outbox._relay is not None
    return outbox._relay


def bodies(server: EmbeddedRocketMQ, topic: str = "T") -> list[bytes]:
    return sorted(message.body for message in server.messages(topic))
