"""What group consumers promise, in full, on real brokers: ``python benchmarks/consumer_runs.py --what rolling,poison``.

One line of JSON for each run; exit code 1 where one breaks its promise. What the runs are is in tests/cluster/group_*.py.

- ``rolling``: ten members, 64 queues, each stopped and replaced. 99 % of the pauses of queues that moved are at most 1 s beyond the
  former owner's handlers.
- ``poison``: 1 % of the messages raise, then raise DeadLetter. The others keep 95 % of their rate; the bad ones are dead letters
  after 3 calls, or one.
- ``hung``: a handler that never ends. The other queues go on; its own up to ``max_span``; it is cancelled and called again.
- ``starts``: 1,000 groups with ``start_from="latest"``, on topics that get queues meanwhile. None misses what is sent afterwards.
- ``java``, ``java-await``: members of the official client join and stop, each 3 s, 50 times; ``java-await`` has them wait for
  their listeners when they stop, up to 10 s. A comparison; it promises nothing.
- ``mixed``: members of both clients in one group, 20 joins and leaves. Nothing is lost, the shares are those of Java's AVG.
- ``failures``: a broker killed for 30 s, paused for 60 s, moved to another port after 10 s; name servers paused for 60 s, killed
  for 35 s. The queues go on within 30 s of the cure, ``health()`` names the cause meanwhile, nothing is lost or repeated beyond the
  bound. ``cuts``: the same of connections cut at each field of pulls, commits, locks and give-backs, and of their answers;
  ``bytes``: at each byte of them, in the simulation, without a cluster.
- ``memory``: 1,000 queues with bodies of 1 MiB (3 GB on the disk). ``idle``: an idle queue beside a backlog of 10^6.

Needs what RealCluster needs, ``java`` and ``mixed`` also javac.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import msgspec

from rmq_async import run
from rmq_async.testing.cluster import DEFAULT_VERSION, RealCluster
from rmq_async.testing.simulation import Simulation
from tests.cluster.group_calls import high
from tests.cluster.group_failures import FAILURES, fails
from tests.cluster.group_hung import hangs
from tests.cluster.group_member import DEAD, RAISES
from tests.cluster.group_members import Group, rebalances
from tests.cluster.group_memory import idle_queue, memory
from tests.cluster.group_runs import mixed, poisoned, rolling_restart
from tests.cluster.group_starts import new_groups
from tests.cluster.java_members import java_members
from tests.support.group_cuts import CUTS, WAYS, Cuts, bytes_of, cut_each, fields_of

Record = dict[str, object]
Result = tuple[bool, Record]

MIB = 1 << 20


async def rolling(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    rate = given.rate or 640.0
    async with Group(real, directory, rate, 1.0, queues=64) as group:
        count, pauses, longest_exit = await rolling_restart(group, 10, given.every)
    beyond = [pause.beyond for pause in pauses]
    found = {"p50": high(beyond, 0.5), "p90": high(beyond, 0.9), "p99": high(beyond), "longest": high(beyond, 1.0)}
    record: Record = {"rate": rate, "moved": len(pauses), "beyond, s": found, "longest exit, s": longest_exit}
    return count.exactly_once and found["p99"] <= 1.0, record | msgspec.to_builtins(count)


async def poison(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    rate = given.rate or 2000.0
    async with Group(real, directory, rate, 0.02, retry=(2, (1.0, 1.0))) as group:
        count, found = await poisoned(group, 3, 20.0, 100)
    share = min(found.rates[tag] / found.offered[tag] for tag in (RAISES, DEAD))
    attempts = {RAISES: {3: found.tagged[RAISES]}, DEAD: {1: found.tagged[DEAD]}}
    good = share >= 0.95 and not count.lost and not count.repeated and found.attempts == attempts
    good = good and found.dead == found.tagged and not found.dead_twice and not found.good_dead
    record: Record = {"rate": rate, "share of the good ones": round(share, 4)}
    return good, record | msgspec.to_builtins(count) | msgspec.to_builtins(found)


async def hung(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    rate = given.rate or 1600.0
    found = [await hangs(real, rate, 10.0, 200) for _ in range(given.runs)]
    good = all(
        each.others >= 0.99 and each.ahead == 199 and each.named_after is not None and 10.0 <= each.cancelled_after < 11.0
        and each.again_after > each.cancelled_after and (each.calls, each.at_a_time, each.lost, each.repeated) == (2, 1, 0, 0)
        for each in found
    )  # fmt: skip
    return good, {"rate": rate, "runs": msgspec.to_builtins(found)}


async def starts(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    found = await new_groups(real, given.groups // 25, 25, 8, 50.0, given.seed)
    return found.missed == found.twice == 0, msgspec.to_builtins(found)


async def of_java(real: RealCluster, directory: Path, given: argparse.Namespace, await_termination: float) -> Result:
    rate = given.rate or 2000.0
    async with (
        Group(real, directory, rate, 0.2) as group,
        java_members(real.namesrv, group.name, group.work, await_termination) as java,
    ):
        group.java = java
        count = await rebalances(group, given.changes, 3.0, given.seed)
    record: Record = {"rate": rate}
    return True, record | msgspec.to_builtins(count)


async def shared(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    rate = given.rate or 500.0
    async with Group(real, directory, rate, 0.2) as group, java_members(real.namesrv, group.name, group.work) as java:
        count, shares = await mixed(group, java, 20, 3.0, given.seed)
    record: Record = {"rate": rate}
    good = not count.lost and not shares.differences
    return good, record | msgspec.to_builtins(count) | msgspec.to_builtins(shares)


async def failures(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    lasting = {"killed": 30.0, "paused": 60.0, "moved": 10.0, "names-paused": 60.0, "names-killed": 35.0}
    found = [await fails(real, what, lasting[what]) for what in FAILURES]
    good = all(each.kept and each.named.keys() & FAILURES[each.what][1] for each in found)
    return good, {"runs": msgspec.to_builtins(found)}


async def cuts(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    kinds = [(what, way) for what in CUTS for way in WAYS]
    found = await asyncio.gather(*(cut_each(real.namesrv, real.brokers[0].name, *kind, fields_of) for kind in kinds))
    return all(each.kept for each in found), {"runs": msgspec.to_builtins(found)}


def of_bytes(seed: int) -> Result:
    async def main(simulation: Simulation, what: str, way: str) -> Cuts:
        return await cut_each(simulation.namesrv, "broker-a", what, way, bytes_of)

    found = [Simulation(seed, brokers=1, faults=None).run(partial(main, what=what, way=way)) for what in CUTS for way in WAYS]
    return all(each.kept for each in found), {"runs": msgspec.to_builtins(found)}


async def of_memory(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    found = await memory(real, directory, 1000, MIB, 64 * MIB, (40.0, 40.0))
    good = found.backlog <= found.limit + 32 and found.arriving <= found.limit + 32 + found.queues * found.body
    return good, msgspec.to_builtins(found)


async def idle(real: RealCluster, directory: Path, given: argparse.Namespace) -> Result:
    async with Group(real, directory, 0.0, 0.2, options={"start_from": "earliest"}) as group:
        found = await idle_queue(group, 1_000_000, 100, 0.3)
    return found.longest < 1.0, msgspec.to_builtins(found)


RUNS: dict[str, Callable[[RealCluster, Path, argparse.Namespace], Awaitable[Result]]] = {
    "rolling": rolling,
    "poison": poison,
    "hung": hung,
    "starts": starts,
    "java": lambda real, directory, given: of_java(real, directory, given, 0.0),
    "java-await": lambda real, directory, given: of_java(real, directory, given, 10.0),
    "mixed": shared,
    "failures": failures,
    "cuts": cuts,
    "memory": of_memory,
    "idle": idle,
}


CLUSTERS: dict[str, dict[str, int]] = {"failures": {"brokers": 2, "nameservers": 2}}
IN_SIMULATION = "bytes"


async def on_cluster(what: str, given: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as place:
        async with RealCluster(version=given.version, small=what != "memory", **CLUSTERS.get(what, {})) as real:
            return await RUNS[what](real, Path(place) / "files", given)


def main(given: argparse.Namespace) -> int:
    good = True
    for what in given.what.split(","):
        kept, record = of_bytes(given.seed) if what == IN_SIMULATION else run(on_cluster(what, given))
        load = [round(each, 1) for each in os.getloadavg()]
        print(
            json.dumps({"what": what, "kept": kept, "version": given.version, "seed": given.seed, "load": load} | record),
            flush=True,
        )
        good &= kept
    return 0 if good else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--what", default=",".join([*RUNS, IN_SIMULATION]))
    parser.add_argument("--version", default=DEFAULT_VERSION)
    parser.add_argument("--rate", type=float, help="messages a second; each run has its own default")
    parser.add_argument("--changes", type=int, default=50, help="of java")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two restarts of rolling")
    parser.add_argument("--runs", type=int, default=5, help="of hung")
    parser.add_argument("--groups", type=int, default=1000, help="of starts")
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(main(parser.parse_args()))
