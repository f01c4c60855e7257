"""Kills a service with an outbox: ``python benchmarks/outbox_faults.py [--seeds 10] [--first 1] [--database NAME] [--away S]``.

Each seed is a run of 20,000 orders, one transaction each, while writer, relay and broker are killed (SIGKILL) and started again at
random moments; then the orders of the database are held against the messages of the topic. ``--away``: instead, the broker is away
for so many seconds while a service goes on adding. One line of JSON for each run; exit code 1 where one found a fault. What the
runs are is in tests/cluster/outbox_kills.py. Needs the extra ``test`` and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import Admin, Message, Producer, run
from rmq_async.outbox import Outbox, StuckMessage
from rmq_async.testing.cluster import RealCluster
from tests.cluster.outbox_kills import drained, run_with_kills
from tests.cluster.outbox_service import Settings, engine_for
from tests.support.postgres import postgres

ORDERS = 20_000


@contextmanager
def database(name: str) -> Iterator[str]:
    if name == "postgresql":
        with postgres() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory() as place:
            yield f"sqlite+aiosqlite:///{place}/orders.db"


async def settings_for(cluster: RealCluster, url: str, seed: int) -> Settings:
    topic = f"outbox-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=4)
    writers = 2 if url.startswith("sqlite") else 4
    return Settings(url, cluster.namesrv, topic, topic.replace("-", "_"), ORDERS, writers, seed)


async def killed(cluster: RealCluster, url: str, seed: int) -> bool:
    found = await run_with_kills(cluster, await settings_for(cluster, url, seed))
    void = len(found.kills) < 3
    record = {"database": url.partition("+")[0], "seed": seed, "void": void} | msgspec.to_builtins(found)
    print(json.dumps(record | {"seconds": round(found.seconds, 1)}), flush=True)
    return found.faultless and found.committed == ORDERS and not void


async def away(cluster: RealCluster, url: str, seconds: float) -> bool:
    """A message each 20 ms; the alert's age is two thirds of the time that the broker is away."""
    settings = await settings_for(cluster, url, 0)
    reported: list[StuckMessage] = []
    slowest, added = 0.0, 0
    engine = engine_for(url)
    async with Producer("service", namesrv=settings.namesrv, topics=[settings.topic]) as producer:
        outbox = Outbox(engine, producer, table=settings.table, stuck_after=seconds * 2 / 3, on_stuck=reported.append)
        await outbox.create_table()
        async with outbox, engine.connect() as connection:
            await cluster.brokers[0].kill()
            began = monotonic()
            while monotonic() - began < seconds:
                before = monotonic()
                await outbox.add(connection, Message(settings.topic, b"order %d" % added, keys=f"order-{added}"))
                await connection.commit()
                slowest, added = max(slowest, monotonic() - before), added + 1
                await asyncio.sleep(0.02)
            there = await outbox.status()
            await cluster.brokers[0].start()
            back = monotonic()
            await drained(settings)
            draining = monotonic() - back
            sent = (await outbox.status()).sent
    await engine.dispose()
    rows = {message.id for message in reported}
    record = {
        "database": url.partition("+")[0], "away": seconds, "added": added, "slowest add, ms": round(slowest * 1000, 1),
        "pending when it came back": there.pending, "sent": sent, "seconds to drain": round(draining, 1),
        "rows reported": len(rows), "reported twice": len(reported) - len(rows),
    }  # fmt: skip
    print(json.dumps(record), flush=True)
    return sent == added == there.pending and len(rows) == len(reported) > 0


async def main(given: argparse.Namespace) -> int:
    good = True
    names = (given.database,) if given.database else ("sqlite", "postgresql")
    async with RealCluster() as cluster:
        for name in names:
            with database(name) as url:
                if given.away:
                    good &= await away(cluster, url, given.away)
                    continue
                for seed in range(given.first, given.first + given.seeds):
                    good &= await killed(cluster, url, seed)
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--database", choices=("sqlite", "postgresql"))
    parser.add_argument("--away", type=float, metavar="SECONDS")
    sys.exit(run(main(parser.parse_args())))
