"""Kills a service with an inbox: ``python benchmarks/inbox_faults.py [--seeds 10] [--first 1] [--orders N] [--database NAME]``.

Each seed is a run of 20,000 orders, a tenth of them sent twice, which two processes of one group handle: inbox, payment and receipt
in one transaction, while a consumer, the broker or PostgreSQL is killed (SIGKILL) and started again at random moments. Then the
payments are counted. One line of JSON for each run; exit code 1 where one found a fault. What the runs are is in
tests/cluster/inbox_kills.py. Needs the extra ``test`` and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import uuid
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import Admin, run
from rmq_async.testing.cluster import RealCluster
from tests.cluster.inbox_kills import run_with_kills
from tests.cluster.inbox_service import Settings
from tests.support.postgres import PostgreSQL, postgres_server

ORDERS = 20_000


async def settings_for(cluster: RealCluster, url: str, orders: int, seed: int) -> Settings:
    name = f"inbox-{uuid.uuid4().hex[:12]}"
    receipts = f"{name}-receipts"
    async with Admin(namesrv=cluster.namesrv) as admin:
        for topic in (name, receipts):
            await admin.create_topic(topic, queues=4)
    return Settings(url, cluster.namesrv, name, receipts, name, orders, seed)


async def killed(cluster: RealCluster, url: str, database: PostgreSQL | None, given: argparse.Namespace, seed: int) -> bool:
    found = await run_with_kills(cluster, await settings_for(cluster, url, given.orders, seed), database)
    record = {"database": url.partition("+")[0], "seed": seed} | msgspec.to_builtins(found)
    print(json.dumps(record | {"seconds": round(found.seconds, 1)}), flush=True)
    return found.faultless


async def main(given: argparse.Namespace) -> int:
    good = True
    names = (given.database,) if given.database else ("sqlite", "postgresql")
    seeds = range(given.first, given.first + given.seeds)
    async with RealCluster() as cluster:
        if "sqlite" in names:
            with tempfile.TemporaryDirectory() as place:
                for seed in seeds:
                    good &= await killed(cluster, f"sqlite+aiosqlite:///{place}/orders.db", None, given, seed)
        if "postgresql" in names:
            with postgres_server() as server:
                for seed in seeds:
                    good &= await killed(cluster, server.url, server, given, seed)
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--database", choices=("sqlite", "postgresql"))
    sys.exit(run(main(parser.parse_args())))
