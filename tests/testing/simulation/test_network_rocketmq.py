"""The client and the embedded server over the simulated network, each on a machine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from random import Random

import pytest

from rmq_async import Message, Producer, machine
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.simulation import SimulatedLoop
from rmq_async.testing.simulation.scheduler import MonotonicClock
from rmq_async.transport.connection import unread

from .networks import Hosts

EPOCH = 1_750_000_000.0
MACHINE = ("monotonic", "time", "random", "entropy", "process_id", "instance_name")


class Cluster(Hosts):
    """An embedded server on the machine ``server``, and a producer on the machine ``client``."""

    def __init__(self, seed: int) -> None:
        self.observed: list[tuple[str, int, bytes]] = []
        super().__init__(seed=seed, observe=lambda stream, at, data: self.observed.append((stream, at, data)))

    def process(self, name: str) -> SimulatedLoop:
        loop = SimulatedLoop(
            self.scheduler,
            name,
            chance=Random(f"{self.seed} process {name}"),
            clock=MonotonicClock(self.scheduler, booted=1000.0),
            network=self.hosts[name],
            entered=self._enter(name),
        )
        self.all_loops.append(loop)
        return loop

    def _enter(self, name: str) -> Callable[[], None]:
        random, entropy = Random(f"{self.seed} random of {name}"), Random(f"{self.seed} entropy of {name}")

        def enter() -> None:
            machine.monotonic = lambda: 1000.0 + self.scheduler.now / 1e9
            machine.time = lambda: EPOCH + self.scheduler.now / 1e9
            machine.random, machine.entropy = random, entropy
            machine.process_id = lambda: 1000
            machine.instance_name = name

        return enter


@contextmanager
def restored() -> Iterator[None]:
    kept = {name: getattr(machine, name) for name in MACHINE}
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(machine, name, value)


async def serve(ready: asyncio.Future[EmbeddedRocketMQ], over: asyncio.Event) -> None:
    async with EmbeddedRocketMQ(host="server", brokers=2) as server:
        ready.set_result(server)
        await over.wait()


def sends(seed: int, count: int, during: Callable[[Cluster, int], None] = lambda cluster, number: None) -> Cluster:
    """Sends ``count`` messages, eight at a time; ``during`` is called after each."""
    cluster = Cluster(seed)

    async def main() -> None:
        ready: asyncio.Future[EmbeddedRocketMQ] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()
        serving = cluster.loops["server"].create_task(serve(ready, over))
        server = await ready
        assert server.namesrv.startswith("10.0.0.2:")
        async with Producer("g", namesrv=server.namesrv) as producer:
            left = iter(range(count))

            async def some() -> None:
                for number in left:
                    result = await producer.send(Message("T", b"body %d" % number))
                    assert result.msg_id
                    during(cluster, number)

            await asyncio.gather(*[some() for _ in range(8)])
        stored = sorted(message.body for message in server.messages("T"))
        assert set(stored) == {b"body %d" % number for number in range(count)}
        over.set()
        while not serving.done():
            await asyncio.sleep(0.1)
        serving.result()
        await asyncio.sleep(2)

    with restored():
        cluster.run(main)
    return cluster


def test_a_thousand_sends_of_a_producer_arrive_at_an_embedded_server() -> None:
    cluster = sends(4711, 1000)
    assert cluster.left() == 0
    assert cluster.scheduler.now / 1e9 < 60
    assert len(cluster.observed) > 200


def test_sends_of_one_seed_put_the_same_bytes_on_the_network() -> None:
    def observed(seed: int) -> list[tuple[str, int, int]]:
        return [(stream, at, len(data)) for stream, at, data in sends(seed, 200).observed]

    first = observed(17)
    assert observed(17) == first
    assert observed(18) != first


@pytest.mark.parametrize("fault", ["cut", "drop", "slow"])
def test_sends_arrive_in_spite_of_faults_of_the_link(fault: str) -> None:
    def strike(cluster: Cluster, number: int) -> None:
        if number % 100 != 99:
            return
        if fault == "drop":
            cluster.link.drop()
        elif fault == "slow":
            cluster.link.slow(0.05)
            cluster.scheduler.after(1_000_000_000, cluster.link.slow, 0)
        else:
            cluster.link.cut()
            cluster.scheduler.after(700_000_000, cluster.link.heal)

    cluster = sends(4712, 500, strike)
    assert cluster.left() == 0
    link = cluster.link
    assert {"cut": link.held, "drop": link.resets, "slow": cluster.scheduler.now > 2e9}[fault]


def test_an_answer_that_came_while_the_client_was_stopped_counts() -> None:
    """The process goes on long after the deadline of the send; the answer was in its kernel in time."""
    took: list[float] = []

    def stop(cluster: Cluster, number: int) -> None:
        if number == 50:
            cluster.scheduler.after(100_000, cluster.pause, "client")
            cluster.scheduler.after(30_000_000_000, cluster.resume, "client")
        took.append(cluster.scheduler.now / 1e9)

    cluster = sends(4713, 100, stop)
    assert max(later - earlier for earlier, later in pairwise(took)) > 29
    connections = {stream for stream, _, _ in cluster.observed if stream.startswith("client:")}
    assert len(connections) == 3, "one for each server: none was given up"


def test_the_library_sees_what_waits_in_a_simulated_kernel() -> None:
    hosts = Hosts()

    async def main() -> None:
        near, far = await hosts.pair()
        far.transport.pause_reading()
        assert unread(far.transport) == 0
        near.transport.write(b"twelve bytes")
        await asyncio.sleep(1)
        assert unread(far.transport) == 12

    hosts.run(main)
