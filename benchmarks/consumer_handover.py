"""Members of a consumer group that come and leave under load: ``python benchmarks/consumer_handover.py [--what rebalance,kill]``.

Starts a real broker and members as processes, and counts what became of each message (sent, handled, lost, handled twice, dead
letters), one line of JSON for each run. ``rebalance``: six members, 16 queues, handlers of 0 to 200 ms; one joins or stops each
3 s, 50 times. ``control``: the same with members that wait 1 ms for their handlers. ``term``, ``kill``: one of three members is
ended by SIGTERM or SIGKILL, 20 times, handlers of 0 to 2 s. Exit code 1 where a run lost a message, or repeated one without a
SIGKILL; twelve minutes for all of it. What the runs are is in tests/cluster/group_members.py. Needs what RealCluster needs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import msgspec

from rmq_async import run
from rmq_async.testing.cluster import DEFAULT_VERSION, RealCluster
from tests.cluster.group_members import Group, ends_of_members, rebalances

INTERVAL = 1.0
"""``commit_interval`` of the members that are killed; those ended by SIGTERM commit each 50 ms, so that a commit is under way."""


async def one(what: str, real: RealCluster, directory: Path, given: argparse.Namespace) -> bool:
    record: dict[str, object] = {"what": what, "version": real.version, "rate": given.rate, "seed": given.seed}
    if what in ("rebalance", "control"):
        options = {"handover_timeout": 0.001} if what == "control" else {}
        async with Group(real, directory, given.rate, 0.2, options=options) as group:
            count = await rebalances(group, given.changes, 3.0, given.seed)
        good = count.exactly_once
    else:
        interval = INTERVAL if what == "kill" else 0.05
        number = signal.SIGKILL if what == "kill" else signal.SIGTERM
        options = {"handover_timeout": 3.0, "commit_interval": interval}
        async with Group(real, directory, given.rate / 20, 2.0, options=options) as group:
            count, ended = await ends_of_members(group, number, given.runs, given.seed, interval)
        record["rate"] = given.rate / 20
        late = sum(each.seconds > each.last_end + 1.0 for each in ended)
        record |= {
            "ended": len(ended),
            "exit codes": sorted({each.code for each in ended}),
            "exit, longest s": max(each.seconds for each in ended),
            "handlers begun after the signal": sum(each.begun_after for each in ended),
            "exits more than 1 s after the last handler": late,
            "replayed": [each.replayed for each in ended],
            "bound": [each.bound for each in ended],
        }
        good = not count.lost and all(each.replayed <= each.bound for each in ended)
        good = good and (what == "kill" or (count.exactly_once and not late and not any(each.code for each in ended)))
    print(json.dumps(record | msgspec.to_builtins(count)), flush=True)
    return good


async def main(given: argparse.Namespace) -> int:
    good = True
    async with RealCluster(version=given.version) as real:
        for what in given.what.split(","):
            with tempfile.TemporaryDirectory() as place:
                good &= await one(what, real, Path(place), given) or what == "control"
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", default="rebalance,control,term,kill")
    parser.add_argument("--version", default=DEFAULT_VERSION)
    parser.add_argument("--rate", type=float, default=2000.0, help="messages a second; a twentieth of it for term and kill")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(run(main(parser.parse_args())))
