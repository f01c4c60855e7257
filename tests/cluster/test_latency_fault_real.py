"""One of two brokers frozen under load: what sends wait for it, and how many still go there once it is known to be silent.

Producers with each ``latency_fault`` send at once, 200 messages a second each. RMQ_PAUSE says for how many seconds the broker is
frozen: 6 here, 10 in the runs that docs/reliability.md has the figures of, where a producer with True and no detector takes part
too; its broker comes back when its time is over, some 12 seconds after it froze.
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import Any, NamedTuple

from rmq_async import Producer, run
from rmq_async.testing.cluster import RealCluster

from .history import faults
from .load import Load, new_topic, print_counts, settled

PAUSE = float(os.environ.get("RMQ_PAUSE") or 6.0)
RATE = 200
CAP = 1.0
"""Seconds an attempt gets while another broker is left: a third of the time of a send."""
ALLOWED = 0.3
"""Seconds more that an affected send may take."""
BACK = 40.0
"""Seconds after which a broker that works again is used again."""

VARIANTS: dict[str, dict[str, Any]] = {
    "False": {"latency_fault": False},
    "failures": {},
    "True": {"latency_fault": True},
    "True, with detector": {"latency_fault": True, "detector": True},
}


async def until_back(load: Load, broker: str, since: float) -> float:
    """Seconds until a message that was sent after ``since`` was stored by the broker."""
    seen = 0
    while monotonic() < since + BACK:
        for ended in load.ended[seen:]:
            if ended.broker == broker and ended.at - ended.seconds > since:
                return ended.at - since
        seen = len(load.ended)
        await asyncio.sleep(0.05)
    return float("inf")


class Moment:
    """When the broker froze, and when it went on."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.frozen: asyncio.Future[float] = loop.create_future()
        self.thawed: asyncio.Future[float] = loop.create_future()


class Run(NamedTuple):
    load: Load
    back: float
    """Seconds until the broker was used again, after it went on."""


async def drive(cluster: RealCluster, name: str, victim: str, moment: Moment) -> Run:
    """One producer through the whole run."""
    topic = await new_topic(cluster)
    options = {"namesrv": cluster.namesrv, "instance_name": f"frozen {name}", **VARIANTS[name]}
    async with Producer("frozen", **options) as producer:
        load = Load(producer, topic, RATE)
        try:
            back = await until_back(load, victim, await moment.thawed)
            await asyncio.sleep(0.3)
        finally:
            await load.stop()
    return Run(load, back)


async def judge(cluster: RealCluster, name: str, victim: str, moment: Moment, run: Run) -> None:
    """What is promised of one producer."""
    load, back = run
    frozen, thawed = moment.frozen.result(), moment.thawed.result()
    history, read = load.history, await settled(cluster.namesrv, load.topic)
    print_counts(f"{victim} frozen for {PAUSE:g} s, latency_fault {name}", history, read, 0)
    affected = sorted(
        load.own(each) for each in load.ended if each.attempts > 1 or (each.broker == victim and each.seconds > 0.2)
    )
    p99 = affected[max(0, -(-len(affected) * 99 // 100) - 1)]
    later = [each for each in load.ended if frozen + 1.0 <= each.at - each.seconds < thawed]
    touching = sum(each.attempts > 1 or each.broker == victim for each in later)
    print(
        f"latency_fault {name}: {len(affected)} sends affected, p99 {p99:.3f} s; of {len(later)} sends from the second second on "
        f"{touching} went to {victim}; used again {back:.2f} s after it went on"
    )
    assert history.failed == {}
    assert faults(history, read) == []
    assert p99 <= CAP + ALLOWED
    assert back <= BACK
    if name == "False":
        assert touching > 0.3 * len(later)
    else:  # half of what was sent while the loop was late could not know better
        assert touching < 0.01 * len(later) + load.lateness.between(frozen, thawed) * RATE / 2


def test_a_frozen_broker_fails_no_send_and_is_left_alone(two_brokers: RealCluster) -> None:
    async def main() -> None:
        victim, moment = two_brokers.brokers[0], Moment()
        names = [name for name in VARIANTS if name != "True" or PAUSE >= 10]
        async with asyncio.TaskGroup() as group:
            runs = [group.create_task(drive(two_brokers, name, victim.name, moment)) for name in names]
            await asyncio.sleep(1.0)
            victim.pause()
            try:
                moment.frozen.set_result(monotonic())
                await asyncio.sleep(PAUSE)
            finally:
                victim.resume()
            moment.thawed.set_result(monotonic())
        for name, ended in zip(names, runs, strict=True):
            await judge(two_brokers, name, victim.name, moment, ended.result())

    run(main())
