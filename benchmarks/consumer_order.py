"""Order in group consumers, in full, on real brokers: ``python benchmarks/consumer_order.py --what key,changes,kills,java``.

One line of JSON for each run; exit code 1 where one breaks its promise. What the runs are is in tests/cluster/group_order.py.

- ``key``: one queue, 1,000 keys, handlers of 10 ms, order by key, beside handlers without order, empty ones, and tasks of asyncio
  alone that sleep as long. No key overlaps or goes back.
- ``changes``: order by key; members join and stop, 2 % of the attempts fail. Nothing is lost or repeated, each key is in order.
- ``kills``: members that read in order, in batches or by hand end by SIGKILL, one each 4 s. Nothing is lost, no line overlaps.
- ``java``: order by queue beside an orderly Java member, and kills of ours. One call of a queue at a time, nothing lost.

Needs what RealCluster needs, ``java`` also javac.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import msgspec

from rmq_async import run
from rmq_async.testing.cluster import DEFAULT_VERSION, RealCluster
from tests.cluster.group_members import Group
from tests.cluster.group_order import key_rates, kills, ordered_changes
from tests.cluster.java_members import java_members

Record = dict[str, object]
Result = tuple[bool, Record]


async def by_key(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    found = await key_rates(real, given.messages, 1000, 0.01, given.rounds, given.concurrency, 4000, body=given.body)
    return found.overlaps == found.backwards == 0, msgspec.to_builtins(found)


async def changes(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    async with Group(
        real, directory, given.rate, 0.1, queues=8, order="key", keys=100, fails=0.02, retry=(16, (0.1, 0.5))
    ) as group:
        count, order = await ordered_changes(group, given.changes, 2.0, given.seed)
    good = count.exactly_once and not order.overlaps and not order.backwards
    return good, msgspec.to_builtins(count) | msgspec.to_builtins(order)


async def beside_java(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    async with (
        Group(real, directory, given.rate / 2, 0.05, queues=8, order="queue") as group,
        java_members(real.namesrv, group.name, group.work, 5.0, orderly=True) as java,
    ):
        count, order = await ordered_changes(group, given.changes, 3.0, given.seed, java=java, kills=2)
    return not count.lost and not order.overlaps, msgspec.to_builtins(count) | msgspec.to_builtins(order)


WAYS: dict[str, dict[str, Any]] = {
    "order by key": {"order": "key", "keys": 100},
    "order by queue": {"order": "queue"},
    "order by queue, batches": {"order": "queue", "batch": 8},
    "batches": {"batch": 8},
    "by hand": {"by_hand": True},
}


async def killed(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    good, record = True, Record()
    for way, options in WAYS.items():
        async with Group(real, directory / way.replace(" ", "-"), given.rate / 2, 0.05, queues=8, **options) as group:
            count, order = await kills(group, given.kills, 4.0, given.seed)
        good = good and not count.lost
        if "order" in options and "batch" not in options:  # the calls of one batch overlap in the file
            good = good and not order.overlaps and order.backwards == order.after_a_kill
        record[way] = msgspec.to_builtins(count) | msgspec.to_builtins(order)
    return good, record


RUNS = {"kills": killed, "key": by_key, "changes": changes, "java": beside_java}


async def main(given: argparse.Namespace) -> int:
    good = True
    for what in given.what.split(","):
        with tempfile.TemporaryDirectory() as place:
            async with RealCluster(version=given.version, small=True) as real:
                kept, record = await RUNS[what](real, Path(place) / "files", given)
        load = [round(each, 1) for each in os.getloadavg()]
        settings: Record = {"what": what, "kept": kept, "version": real.version, "seed": given.seed, "load": load}
        print(json.dumps(settings | record), flush=True)
        good &= kept
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", default=",".join(RUNS))
    parser.add_argument("--version", default=DEFAULT_VERSION)
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second of changes; java has half of it")
    parser.add_argument("--rounds", type=int, default=3, help="of key")
    parser.add_argument("--concurrency", type=int, default=200, help="of key")
    parser.add_argument("--messages", type=int, default=20_000, help="of key")
    parser.add_argument("--body", type=int, default=0, help="bytes of a body of key, at least")
    parser.add_argument("--changes", type=int, default=10)
    parser.add_argument("--kills", type=int, default=5, help="of each way of kills")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(run(main(parser.parse_args())))
