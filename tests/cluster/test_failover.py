"""Brokers that are killed, shut down and paused under a steady load: what the client promises then, counted on real servers.

Each run has a driver that sends 500 messages a second, a disturber that does something to a broker, and the checker of
``history``, which sees only what the driver wrote down and what was read afterwards. The seed chooses the broker and the
moments; it is printed, and RMQ_SEED repeats it. A run in which no send met the fault fails as void.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple

import pytest

from rmq_async import Admin, Message, Producer, RocketMQError, SendResult, run
from rmq_async.testing.cluster import RealCluster, Server
from rmq_async.transport import CloseReason, Connection

from .accounting import read_all, stored_count
from .history import Copy, History, copies, faults, verdict, void

RATE = 500
"""Messages a second."""

LATE = 0.05
"""Seconds after its deadline by which a send has ended."""

MACHINE = 0.2
"""Seconds more, for a machine that starts a JVM on the same cores."""


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("RMQ_SEED") or random.randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return random.Random(seed)


class Ended(NamedTuple):
    """One call that ended, after ``seconds``. ``broker``: where its message was stored; None when it failed."""

    at: float
    seconds: float
    attempts: int
    broker: str | None


class Load:
    """Sends ``RATE`` messages a second until ``stop``, however long each takes, and writes down what becomes of them."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.topic = topic
        self.history = History()
        self.ended: list[Ended] = []
        self._producer = producer
        self.lag = 0.0
        """Seconds by which the loop, or the machine, was late at most: no send is better than that."""
        self._stopping = False
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    def between(self, start: float, end: float) -> list[Ended]:
        return [each for each in self.ended if start <= each.at < end]

    def first_success_since(self, when: float) -> float | None:
        return next((each.at for each in self.ended if each.at >= when and each.broker is not None), None)

    async def _run(self) -> None:
        start, made, calls = monotonic(), 0, set[asyncio.Task[None]]()
        while not self._stopping:
            while made < (monotonic() - start) * RATE:
                call = asyncio.ensure_future(self._send(str(made)))
                calls.add(call)
                call.add_done_callback(calls.discard)
                made += 1
            asleep = monotonic()
            await asyncio.sleep(0.002)
            self.lag = max(self.lag, monotonic() - asleep - 0.002)
        await asyncio.gather(*calls)

    async def _send(self, name: str) -> None:
        began = monotonic()
        try:
            result = await self._producer.send(Message(self.topic, name.encode()))
        except RocketMQError as error:
            now = monotonic()
            self.history.gave_up(name, error, now - began)
            self.ended.append(Ended(now, now - began, self.history.requests[name], None))
        else:
            now = monotonic()
            self.history.succeeded(name, result, now - began)
            self.ended.append(Ended(now, now - began, result.attempts, result.queue.broker_name))


class Watch:
    """The connections the producer has at this moment, to see later which of them were lost."""

    def __init__(self, producer: Producer) -> None:
        instance = producer._instance
        assert instance is not None
        self.pool = instance.pool
        self.connections: tuple[Connection, ...] = self.pool.connections

    @property
    def lost(self) -> int:
        return sum(connection.close_reason not in (None, CloseReason.LOCAL) for connection in self.connections)


async def new_topic(cluster: RealCluster, broker: str | None = None) -> str:
    topic = f"failover-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=4, broker=broker)
    return topic


@asynccontextmanager
async def loaded(cluster: RealCluster, *, broker: str | None = None) -> AsyncIterator[tuple[Load, Producer]]:
    """A topic on all brokers, or on one, and a load on it that has run for half a second."""
    topic = await new_topic(cluster, broker)
    async with Producer("failover", namesrv=cluster.namesrv, route_poll_interval=1.0) as producer:
        load = Load(producer, topic)
        try:
            await asyncio.sleep(0.5)
            yield load, producer
        finally:
            await load.stop()


async def settled(namesrv: str, topic: str) -> list[Copy]:
    """All that is in the topic, once its offsets stand still: a broker that recovers goes on indexing for a moment."""
    before, count = -1, await stored_count(namesrv, topic)
    while count != before:
        await asyncio.sleep(0.3)
        before, count = count, await stored_count(namesrv, topic)
    return copies(await read_all(namesrv, topic))


async def until_used(producer: Producer, broker: Server) -> None:
    """Until the producer is connected to the broker again, which its next look at the route leads to."""
    pool, start = Watch(producer).pool, monotonic()
    while pool.get(broker.address) is None:
        assert monotonic() - start < 10.0, f"{broker.name} is not used again"
        await asyncio.sleep(0.02)


def tell(what: str, history: History, read: list[Copy], lost_connections: int) -> None:
    print(
        f"{what}: {verdict(history, read)}; {history.retried} retried, {len(history.failed)} failed, {lost_connections} "
        f"connections lost, slowest send {history.slowest:.3f} s"
    )


@pytest.mark.parametrize("run_number", [1, 2])
def test_a_killed_and_restarted_broker_fails_no_send(two_brokers: RealCluster, chance: random.Random, run_number: int) -> None:
    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers) as (load, producer):
            watch = Watch(producer)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await victim.kill()
            await asyncio.sleep(chance.uniform(0.0, 1.5))
            await victim.start()
            await until_used(producer, victim)
            await asyncio.sleep(0.5)
        history, read = load.history, await settled(two_brokers.namesrv, load.topic)
        tell(f"SIGKILL {victim.name}", history, read, watch.lost)
        assert not void(history, watch.lost)
        assert history.failed == {}
        assert faults(history, read, may_lose=True) == []  # ASYNC_FLUSH: what is lost then, the broker lost; told above

    run(main())


@pytest.mark.parametrize("run_number", [1, 2])
def test_a_broker_shut_down_in_order_fails_and_loses_nothing(
    two_brokers: RealCluster, chance: random.Random, run_number: int
) -> None:
    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers) as (load, producer):
            watch = Watch(producer)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await victim.stop()
            await victim.start()
            await until_used(producer, victim)
            await asyncio.sleep(0.5)
        history, read = load.history, await settled(two_brokers.namesrv, load.topic)
        tell(f"SIGTERM {victim.name}", history, read, watch.lost)
        assert not void(history, watch.lost)
        assert history.failed == {}
        assert faults(history, read) == []

    run(main())


def test_the_only_broker_killed_fails_sends_in_time_and_serves_them_again(
    two_brokers: RealCluster, chance: random.Random
) -> None:
    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers, broker=victim.name) as (load, producer):
            watch = Watch(producer)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await victim.kill()
            killed = monotonic()
            await asyncio.sleep(producer.config.timeout + chance.uniform(0.5, 1.5))
            victim.spawn()
            await victim.wait_port(monotonic() + 30.0)
            opened = monotonic()
            while not load.first_success_since(opened) and monotonic() < opened + 10.0:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
        recovered = load.first_success_since(killed + 0.1)
        await two_brokers.heal()  # who reads asks the name servers, with which the broker registers in its own time
        history, read = load.history, await settled(two_brokers.namesrv, load.topic)
        tell(f"SIGKILL {victim.name}, the only one", history, read, watch.lost)
        assert recovered is not None
        print(f"sends succeeded again {recovered - opened:.3f} s after the port opened")
        assert history.failed
        assert history.slowest <= producer.config.timeout + LATE + MACHINE
        assert recovered - opened <= 5.0
        begun_since = [each for each in load.ended if each.at - each.seconds > recovered]
        assert begun_since
        assert all(each.broker for each in begun_since), list(history.failed.values())[-5:]
        assert faults(history, read, may_lose=True) == []

    run(main())


def test_a_paused_broker_costs_no_send_more_than_its_cap(two_brokers: RealCluster, chance: random.Random) -> None:
    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers) as (load, producer):
            watch = Watch(producer)
            connection = watch.pool.get(victim.address)
            assert connection is not None
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            victim.pause()
            paused = monotonic()
            try:
                await asyncio.sleep(4.0)
            finally:
                victim.resume()
            resumed = monotonic()
            await asyncio.sleep(2.5)
            strays = connection.strays
        history, read = load.history, await settled(two_brokers.namesrv, load.topic)
        tell(f"SIGSTOP {victim.name}", history, read, watch.lost)
        cap = producer.config.timeout / (producer.config.retries + 1)
        during = load.between(paused + cap + 0.5, resumed)
        straight = [each for each in load.ended if each.attempts == 1 and each.broker != victim.name]
        healthy = max(each.seconds for each in straight)
        after = [each.broker for each in load.between(resumed + 1.0, resumed + 2.0)]
        rate = len(during) / (resumed - paused - cap - 0.5)
        print(
            f"{rate:.0f} messages/s while it was paused, {strays} answers after the end of their calls; from 1 s after "
            f"SIGCONT on {after.count(victim.name)} of {len(after)} messages went there; the other broker's slowest "
            f"{healthy:.3f} s, the loop at most {load.lag:.3f} s late"
        )
        assert history.retried > 100
        assert strays
        assert history.failed == {}
        assert watch.lost == 0
        not_ours = max(MACHINE, healthy, 2 * load.lag)
        assert history.slowest <= cap + LATE + not_ours
        assert healthy < cap
        assert rate > 0.9 * RATE
        assert after.count(victim.name) > 0.4 * len(after) > 0.36 * RATE
        assert faults(history, read) == []

    run(main())


@pytest.mark.parametrize("runner", [run, asyncio.run], ids=["uvloop", "asyncio"])
def test_a_loop_blocked_for_5_seconds_makes_no_send_late(
    two_brokers: RealCluster, runner: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def main() -> None:
        topic = await new_topic(two_brokers)
        async with Producer("blocked", namesrv=two_brokers.namesrv) as producer:
            await asyncio.gather(*[producer.send(Message(topic, b"warm")) for _ in range(10)])
            awaited = [asyncio.ensure_future(producer.send(Message(topic, b"%d" % number))) for number in range(500)]
            deferred = [await producer.send_async(Message(topic, b"%d" % number)) for number in range(500, 1000)]
            batch = asyncio.ensure_future(producer.send_batch([Message(topic, b"%d" % number) for number in range(1000, 1100)]))
            await asyncio.sleep(0)
            assert not any(call.done() for call in (awaited[-1], deferred[-1], batch))
            asyncio.get_running_loop().call_soon(time.sleep, 5)
            began = monotonic()
            results: list[SendResult] = await asyncio.gather(*awaited, *deferred)
            attempts = [result.attempts for result in results] + [(await batch).attempts]
            print(f"{len(attempts)} calls of {producer.config.timeout} s ended after {monotonic() - began:.3f} s")
        assert monotonic() - began > 5.0
        assert set(attempts) == {1}
        assert await stored_count(two_brokers.namesrv, topic) == 1110

    runner(main())
