"""Faults of real servers under load, each with its six counts: attempted, acknowledged, read, lost, found but unacknowledged,
duplicated.

A seed chooses the moments and is printed. RMQ_SEED begins with that one, RMQ_SEEDS says how many follow (1), and
RMQ_OUTAGE for how many seconds the name server is away (8 here, 30 in the runs that docs/reliability.md describes). A run whose
fault met nothing fails as void.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from time import monotonic

import pytest

from rmq_async import Message, NameServerError, Producer, machine, run
from rmq_async.testing.cluster import RealCluster

from ..support.lateness import Lateness
from .accounting import read_all
from .history import History, copies, faults
from .load import Load, Watch, new_topic, print_counts, settled, until_used

SEEDS = int(os.environ.get("RMQ_SEEDS") or 1)
FIRST_SEED = int(os.environ.get("RMQ_SEED") or random.randrange(1 << 31))
OUTAGE = float(os.environ.get("RMQ_OUTAGE") or 8.0)
RATE = int(os.environ.get("RMQ_RATE") or 160)
"""Messages a second to the broker that is killed, and half as many where the name server is."""

LATE = 0.25
"""Seconds after its deadline by which a send has ended, on a machine that starts a JVM on the same cores."""


@pytest.mark.parametrize("number", range(SEEDS))
def test_a_broker_killed_three_times_and_the_only_name_server_away(two_brokers: RealCluster, number: int) -> None:
    """Two runs at once on one cluster: the first knows the second name server only, the other one the first."""
    seed = FIRST_SEED + number
    print(f"RMQ_SEED={seed}")

    async def main() -> None:
        chance = random.Random(seed)
        async with asyncio.TaskGroup() as runs:
            runs.create_task(killed_three_times(two_brokers, chance))
            runs.create_task(without_the_name_server(two_brokers, chance))

    run(main())


async def killed_three_times(cluster: RealCluster, chance: random.Random) -> None:
    victim, namesrv = cluster.brokers[0], cluster.nameservers[1].address
    topic = await new_topic(cluster)
    lost_connections = 0
    async with Producer("killed", namesrv=namesrv, route_poll_interval=1.0) as producer, load_on(producer, topic, RATE) as load:
        for _ in range(3):
            watch = await Watch.of(producer)
            await asyncio.sleep(chance.uniform(0.0, 0.7))
            await victim.kill()
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            await victim.start()
            await until_used(producer, victim)
            lost_connections += watch.lost
        await asyncio.sleep(0.3)
    history, read = load.history, await settled(namesrv, topic)
    print_counts(f"{victim.name} killed three times", history, read, lost_connections)
    assert lost_connections >= 3
    assert history.failed == {}
    assert faults(history, read) == []


async def without_the_name_server(cluster: RealCluster, chance: random.Random) -> None:
    names, broker = cluster.nameservers[0], cluster.brokers[1]
    topic = await new_topic(cluster, broker.name)
    async with (
        Producer("nameless", namesrv=names.address, route_poll_interval=0.5) as producer,
        load_on(producer, topic, RATE // 2) as load,
    ):
        await asyncio.sleep(chance.uniform(0.0, 0.7))
        await names.kill()
        died, refused = monotonic(), 0
        while monotonic() < died + OUTAGE:
            with pytest.raises(NameServerError, match=names.address):
                await producer.send(Message(f"new-{topic}", b"x"), timeout=1.0)
            refused += 1
            await asyncio.sleep(chance.uniform(0.2, 0.7))
        during = load.between(died, died + OUTAGE)
        await names.start(registered=False)
        await asyncio.sleep(1.2)  # it is polled twice, and knows no topic until a broker registers
    history, read = load.history, await settled(cluster.nameservers[1].address, topic)
    print_counts(f"the only name server away for {OUTAGE:g} s ({refused} sends to new topics refused)", history, read, 0)
    assert refused
    assert len(during) > 0.9 * OUTAGE * load.rate
    assert {each.broker for each in load.ended} == {broker.name}
    assert history.failed == {}
    assert faults(history, read) == []


@asynccontextmanager
async def load_on(producer: Producer, topic: str, rate: int) -> AsyncIterator[Load]:
    load = Load(producer, topic, rate)
    try:
        await asyncio.sleep(0.3)
        yield load
    finally:
        await load.stop()


@pytest.mark.parametrize("kind", ["dead", "silent"])
def test_one_of_three_name_servers_answers_nothing(
    two_brokers: RealCluster, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topics = [await new_topic(two_brokers) for _ in range(3)]
        history = History()
        with socket.create_server(("127.0.0.1", 0)) as unused:
            address = f"127.0.0.1:{unused.getsockname()[1]}"
            if kind == "dead":
                unused.close()

            def asked_first(names: list[str]) -> None:
                names.sort(key=lambda each: each != address)

            monkeypatch.setattr(machine.random, "shuffle", asked_first)
            producer = Producer("three", namesrv=[address, *two_brokers.namesrv.split(";")])
            async with Lateness() as late:
                calls = [monotonic()]
                async with producer:
                    calls.append(monotonic())
                    for topic in topics:
                        for count in range(150):
                            name = f"{topic}-{count}"
                            result = await producer.send(Message(topic, name.encode()))
                            history.succeeded(name, result, monotonic() - calls[-1])
                            calls.append(monotonic())
            start, *sends = (late.own(*each) for each in pairwise(calls))
        read = [copy for topic in topics for copy in copies(await read_all(two_brokers.namesrv, topic))]
        print_counts(f"one of three name servers {kind}, started in {start:.3f} s", history, read, 0)
        assert (start > 0.5) == (kind == "silent")
        assert max(start, *sends) <= 1.0 + LATE  # a third of a look-up's time is the silent one's share
        assert len(history.acknowledged) == 450
        assert faults(history, read) == []

    run(main())
