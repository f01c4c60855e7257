"""Locks of queues under which members of a group hand them over: ``python benchmarks/handover.py [--versions 5.5.0,4.9.7]``.

Starts real brokers of each version, without and with ACL (a member with the right to subscribe with its group and topic, no other),
and prints what they do as a table; some seven minutes. The facts are in tests/cluster/handover_facts.py. Needs the extra ``test``
and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from rmq_async import Credentials, run
from rmq_async.consumer.group import handover_group
from rmq_async.testing.cluster import DEFAULT_VERSION, OLD_VERSION, RealCluster
from tests.cluster import handover_facts as facts

Column = dict[str, str]
HANDOVERS = 200
WAITING_FOR = 10.0


def answer(yes: bool) -> str:
    return "yes" if yes else "NO"


async def sentences(members: facts.Members, column: Column) -> None:
    found = await facts.one_owner(members)
    column["granted" if members.credentials else "granted, of a group that does not exist"] = answer(found["granted"])
    column["refused to another client"] = answer(found["refused"])
    column["an unlock by another client is ignored"] = answer(found["ignored"])
    column["granted to another client after its unlock"] = answer(found["freed"])
    column["lives on when its client's connection ends"] = answer(await facts.outlives_its_connection(members))
    for name in (handover_group(facts.GROUP), f"{facts.GROUP}%HANDOVER", facts.GROUP):
        error = await facts.error_under(members, name)
        column[f"lock under {name.replace(facts.GROUP, 'G')}"] = error.split(",")[0][:90] or "granted"


async def measured(members: facts.Members, column: Column, *, long: bool) -> None:
    delays = sorted(await facts.handovers(members, HANDOVERS))
    column["unlock to grant, p50, ms"] = f"{statistics.median(delays) * 1000:.0f}"
    column["unlock to grant, p99, ms"] = f"{delays[int(len(delays) * 0.99)] * 1000:.0f}"
    for clients in (1, 64):
        load = await facts.waiting(members, clients, WAITING_FOR)
        column[f"64 queues waited for by {clients}: requests/s"] = f"{load['requests']:.0f}"
        column[f"64 queues waited for by {clients}: broker CPU, %"] = f"{load['cpu'] * 100:.1f}"
    if long:
        seconds, lives = await asyncio.gather(facts.life(members), facts.renewed(members, 70.0, 20.0))
        column["life without renewal, s"] = f"{seconds:.1f}"
        column["renewed each 20 s: lives after 70 s"] = answer(lives)
    column["forgotten by a broker that restarts; the former owner learns of it"] = answer(
        await facts.lost_in_a_restart(members)
    )


async def retries(real: RealCluster, column: Column) -> None:
    for how in ("send", "36"):
        text = "a send to %RETRY%G" if how == "send" else "a message given back (36)"
        for name in (handover_group(facts.GROUP), f"{facts.GROUP}%HANDOVER", facts.GROUP):
            shown = name.replace(facts.GROUP, "G")
            column[f"{text} during a lock of {shown}"] = await facts.becomes_of_a_retry(real, name, how)


async def on_broker(real: RealCluster, member: Credentials | None, given: argparse.Namespace) -> Column:
    column: Column = {}
    async with real:
        await facts.prepare(real, member)
        async with facts.Members(real, member) as members:
            await sentences(members, column)
        await retries(real, column)
        async with facts.Members(real, member) as members:
            await measured(members, column, long=not given.short)
    return column


def show(columns: dict[str, Column]) -> None:
    rows = list(dict.fromkeys(name for column in columns.values() for name in column))
    print("| |", " | ".join(columns), "|\n|---|" + "---|" * len(columns))
    for row in rows:
        print(f"| {row} |", " | ".join(column.get(row, "") for column in columns.values()), "|", flush=True)


async def main(given: argparse.Namespace) -> None:
    columns: dict[str, Column] = {}
    for version in given.versions.split(","):
        columns[version] = await on_broker(RealCluster(version=version), None, given)
        with tempfile.TemporaryDirectory() as place:
            guarded = facts.guarded_cluster(version, Path(place) / "cluster")
            columns[f"{version}, ACL"] = await on_broker(guarded, facts.MEMBER, given)
        show(columns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--versions", default=f"{DEFAULT_VERSION},{OLD_VERSION}")
    parser.add_argument("--short", action="store_true", help="without the life of a lock, which takes a minute each")
    run(main(parser.parse_args()))
