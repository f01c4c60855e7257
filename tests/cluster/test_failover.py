"""Brokers that are shut down, paused and killed under a steady load: what the client promises then, counted on real servers.

A broker that is killed while there is another one: see test_fault_counts.py.

Each run has a driver that sends 500 messages a second, a disturber that does something to a broker, and the checker of
``history``, which sees only what the driver wrote down and what was read afterwards. The seed chooses the broker and the
moments; it is printed, and RMQ_SEED repeats it. A run in which no send met the fault fails as void.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import pytest

from rmq_async import Message, Producer, SendResult, run
from rmq_async.testing.cluster import RealCluster

from .accounting import stored_count
from .history import faults, void
from .load import RATE, Watch, loaded, new_topic, print_counts, settled, until_used

LATE = 0.05
"""Seconds after its deadline by which a send has ended."""

MACHINE = 0.2
"""Seconds more, for a machine that starts a JVM on the same cores."""


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("RMQ_SEED") or random.randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return random.Random(seed)


def test_a_broker_shut_down_in_order_fails_and_loses_nothing(two_brokers: RealCluster, chance: random.Random) -> None:
    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers) as (load, producer):
            watch = await Watch.of(producer)
            await asyncio.sleep(chance.uniform(0.0, 1.0))
            await victim.stop()
            await victim.start()
            await until_used(producer, victim)
            await asyncio.sleep(0.5)
        history, read = load.history, await settled(two_brokers.namesrv, load.topic)
        print_counts(f"SIGTERM {victim.name}", history, read, watch.lost)
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
            watch = await Watch.of(producer)
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
        print_counts(f"SIGKILL {victim.name}, the only one", history, read, watch.lost)
        assert recovered is not None
        print(f"sends succeeded again {recovered - opened:.3f} s after the port opened")
        assert history.failed
        assert max(map(load.own, load.ended)) <= producer.config.timeout + LATE + MACHINE
        assert recovered - opened <= 5.0
        begun_since = [each for each in load.ended if each.at - each.seconds > recovered]
        assert begun_since
        assert all(each.broker for each in begun_since), list(history.failed.values())[-5:]
        assert faults(history, read, may_lose=True) == []

    run(main())


def test_a_paused_broker_costs_no_send_more_than_its_cap(two_brokers: RealCluster, chance: random.Random) -> None:
    """With nothing remembered from one send to the next: every second one meets it."""

    async def main() -> None:
        victim = chance.choice(two_brokers.brokers)
        async with loaded(two_brokers, latency_fault=False) as (load, producer):
            watch = await Watch.of(producer)
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
        print_counts(f"SIGSTOP {victim.name}", history, read, watch.lost)
        cap = producer.config.timeout / (producer.config.retries + 1)
        during = load.between(paused + cap + 0.5, resumed)
        straight = [each for each in load.ended if each.attempts == 1 and each.broker != victim.name]
        healthy = max(each.seconds for each in straight)
        after = [each.broker for each in load.between(resumed + 1.0, resumed + 2.0)]
        rate = len(during) / (resumed - paused - cap - 0.5)
        print(
            f"{rate:.0f} messages/s while it was paused, {strays} answers after the end of their calls; from 1 s after "
            f"SIGCONT on {after.count(victim.name)} of {len(after)} messages went there; the other broker's slowest "
            f"{healthy:.3f} s"
        )
        assert history.retried > 100
        assert strays
        assert history.failed == {}
        assert watch.lost == 0
        assert max(map(load.own, load.ended)) <= cap + LATE + max(MACHINE, healthy)
        assert healthy < cap
        assert rate > 0.9 * RATE
        assert after.count(victim.name) > 0.4 * len(after) > 0.08 * RATE, "it serves its half again, of however few"
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
        assert await stored_count(two_brokers.namesrv, topic, 1110) == 1110

    runner(main())
