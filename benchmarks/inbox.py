"""What an inbox costs: ``python benchmarks/inbox.py [--rounds 5] [--database NAME]``.

``Inbox.first`` beside the bare insert of the same row, in the same session, in transactions of a hundred; taken in turn within each
round. "copy" is ``first`` of a message that is there already. Microseconds, medians. Needs the extra ``test``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import async_sessionmaker

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from outbox import engine_at

import rmq_async
from rmq_async import MessageExt
from rmq_async.inbox import Inbox
from tests.support.postgres import postgres

TRANSACTIONS, EACH = 10, 100


async def measured(url: str, rounds: int) -> dict[str, float]:
    async with engine_at(url) as engine:
        name = f"inbox_{uuid.uuid4().hex[:8]}"
        inbox = Inbox(group="billing", table=name)
        await inbox.create_table(engine)
        table, sessions = inbox.metadata.tables[name], async_sessionmaker(engine)
        statement, number = insert(table), 0

        def message(which: int) -> MessageExt:
            return MessageExt("OrderTopic", b"x", properties={"UNIQ_KEY": f"{which:032X}"})

        async def bare(session: Any) -> None:
            row = {"consumer_group": "bare", "message_key": f"{number:032X}", "created": datetime.now(UTC)}
            await session.execute(statement, row)

        async def first(session: Any) -> None:
            assert await inbox.first(session, message(number))

        async def copy(session: Any) -> None:
            assert not await inbox.first(session, message(0))

        async with sessions.begin() as session:
            await inbox.first(session, message(0))
        kinds: dict[str, Callable[[Any], Awaitable[None]]] = {"bare": bare, "first": first, "copy": copy}
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for turn in range(rounds + 1):
            for kind, work in kinds.items():
                spent = 0.0
                for _ in range(TRANSACTIONS):
                    async with sessions.begin() as session:
                        began = perf_counter()
                        for _ in range(EACH):
                            number += 1
                            await work(session)
                        spent += perf_counter() - began
                if turn:  # the first round prepares statements
                    found[kind].append(spent / (TRANSACTIONS * EACH) * 1e6)
    middle = {kind: round(statistics.median(times), 1) for kind, times in found.items()}
    ratio = statistics.median(a / b for a, b in zip(found["first"], found["bare"], strict=True))
    return middle | {"first / bare": round(ratio, 3)}


async def main(given: argparse.Namespace) -> None:
    if given.database != "postgresql":
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps({"database": "sqlite"} | await measured(f"sqlite+aiosqlite:///{place}/inbox.db", given.rounds)))
    if given.database != "sqlite":
        with postgres() as url:
            print(json.dumps({"database": "postgresql"} | await measured(url, given.rounds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--database", choices=("sqlite", "postgresql"))
    rmq_async.run(main(parser.parse_args()))
