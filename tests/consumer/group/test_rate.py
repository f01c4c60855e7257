"""Rates of subscriptions."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_async import Batch, ConfigError, Consumer, MessageExt
from rmq_async.consumer.handling.backlog import BURST, PACE, Bucket
from rmq_async.consumer.handling.dispatch import Dispatcher
from rmq_async.embedded import EmbeddedRocketMQ

from .support import Seen, create, send, until

pytestmark = pytest.mark.virtual_time


def calls_of(rate: float, seconds: float, count: int = 1) -> list[float]:
    """Returns the times at which calls begin as early as they may."""
    bucket, now, times = Bucket(rate, 0.0), 0.0, []
    while True:
        due = bucket.due(rate, now)
        if due > seconds:
            return times
        if due > now:
            now = due
            continue
        bucket.take(count)
        times.append(now)


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0, 50.0, 1000.0, 20_000.0])
def test_rate_is_kept_after_a_burst(rate: float) -> None:
    seconds = max(4.0, 4.0 / rate)
    times = calls_of(rate, seconds)
    burst = max(1.0, rate * BURST)
    assert rate * seconds * 0.99 - 1 <= len(times) <= rate * seconds + burst
    assert len({time for time in times if time > 0}) <= seconds / PACE + 1


def test_a_call_with_many_messages_makes_the_next_one_wait() -> None:
    times = calls_of(10.0, 10.0, count=20)
    assert times == pytest.approx([0.0, 2.0, 4.0, 6.0, 8.0, 10.0])


def test_a_new_rate_counts_from_its_change() -> None:
    bucket = Bucket(1.0, 0.0)
    bucket.take(1)
    assert bucket.due(1.0, 0.0) == 1.0
    assert bucket.due(10.0, 0.5) == pytest.approx(0.55)
    assert bucket.due(10.0, 0.55) == pytest.approx(0.55)


@given(st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0, 2), st.integers(1, 100)), max_size=50))
def test_tokens_never_exceed_the_burst(steps: list[tuple[float, float, int]]) -> None:
    bucket, now = Bucket(1.0, 0.0), 0.0
    for rate, elapsed, count in steps:
        now += elapsed
        due = bucket.due(rate, now)
        assert due >= now
        assert bucket.tokens <= bucket.capacity
        if due == now:
            bucket.take(count)


async def test_subscription_begins_so_many_messages_a_second() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *[b"%d" % number for number in range(200)])
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe("T", seen, rate=50)
        loop = asyncio.get_running_loop()
        async with consumer:
            began = loop.time()
            await until(lambda: len(seen.bodies) >= 60)
            elapsed = loop.time() - began
            assert 1.08 < elapsed < 1.14
            assert consumer.stats().buffered > 0


async def test_rate_is_changed_while_it_runs() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *[b"%d" % number for number in range(100)])
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        subscription = consumer.subscribe("T", seen, rate=0.1)
        async with consumer:
            await until(lambda: len(seen.bodies) == 1)
            await asyncio.sleep(0.2)
            assert len(seen.bodies) == 1  # the next one is due in 10 s
            subscription.rate = 100
            await until(lambda: len(seen.bodies) >= 20, timeout=2)
            subscription.rate = None
            await until(lambda: len(seen.bodies) == 100, timeout=2)
            assert subscription.rate is None
            subscription.rate = 10
            await send(server.namesrv, b"100")
            await until(lambda: len(seen.bodies) == 101, timeout=1)  # what went without a rate is no debt
        assert seen.twice == 0


async def test_slow_subscription_does_not_hold_up_another() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await create(server.namesrv, "Fast")
        await send(server.namesrv, *[b"%d" % number for number in range(300)])
        await send(server.namesrv, *[b"%d" % number for number in range(300)], topic="Fast")
        slow, fast = Seen(), Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", buffered_limit=64)
        consumer.subscribe("T", slow, rate=10)
        consumer.subscribe("Fast", fast)
        async with consumer:
            await until(lambda: len(fast.bodies) == 300)
            assert len(slow.bodies) < 100
            assert consumer.stats().buffered <= 64
            assert consumer.health().problems == ()
        assert (slow.twice, fast.twice) == (0, 0)


async def test_waiting_for_a_rate_needs_no_timer_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    pumps = 0
    pump = Dispatcher.pump

    def counted(self: Dispatcher) -> None:
        nonlocal pumps
        pumps += 1
        pump(self)

    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *[b"%d" % number for number in range(500)])
        seen = Seen()
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        subscription = consumer.subscribe("T", seen, rate=0.01)
        async with consumer:
            await until(lambda: consumer.stats().buffered > 200)
            monkeypatch.setattr(Dispatcher, "pump", counted)
            began = loop.time()
            subscription.rate = 1000
            await until(lambda: len(seen.bodies) == 500)
            elapsed = loop.time() - began
        assert pumps - 500 <= elapsed / PACE * 1.5 + 50  # one at the end of each call, and those of the timer


@pytest.mark.parametrize("order", ["key", "queue"])
async def test_ordered_subscription_keeps_its_rate(order: Literal["key", "queue"]) -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=2)
        await send(server.namesrv, *[b"%d" % number for number in range(40)])
        handled: list[bytes] = []

        async def handle(message: MessageExt) -> None:
            handled.append(message.body)

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        key = (lambda message: message.queue.queue_id) if order == "key" else None
        consumer.subscribe("T", handle, order=order, key=key, rate=20)
        loop = asyncio.get_running_loop()
        async with consumer:
            began = loop.time()
            await until(lambda: len(handled) >= 30)
            assert 1.38 < loop.time() - began < 1.44
        for queue in (0, 1):
            found = [int(body) for body in handled if int(body) % 2 == queue]
            assert found == sorted(found)


async def test_batches_count_their_messages() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *[b"%d" % number for number in range(60)])
        sizes: list[int] = []

        async def handle(batch: Batch) -> None:
            sizes.append(len(batch))

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        consumer.subscribe("T", handle, batch_size=20, rate=30)
        async with consumer:
            await until(lambda: len(sizes) >= 1)
            await asyncio.sleep(0.3)
            assert sum(sizes) <= 20
            await until(lambda: sum(sizes) == 60)


@pytest.mark.parametrize("rate", [0, -1, "3", True, float("nan"), float("inf"), pytest.param(10**400, id="huge")])
def test_rate_that_cannot_be(rate: Any) -> None:
    consumer = Consumer("g", namesrv="127.0.0.1:9876")
    with pytest.raises(ConfigError, match="rate must be a finite number of messages per second above 0, or None, not "):
        consumer.subscribe("T", Seen(), rate=rate)
    subscription = consumer.subscribe("T", Seen(), rate=3)
    with pytest.raises(ConfigError, match="rate must be a finite number"):
        subscription.rate = rate
    assert subscription.rate == 3.0


@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "3", True])
def test_concurrency_that_cannot_be_is_not_set(concurrency: Any) -> None:
    subscription = Consumer("g", namesrv="127.0.0.1:9876").subscribe("T", Seen(), concurrency=2)
    with pytest.raises(ConfigError, match="concurrency must be a whole number"):
        subscription.concurrency = concurrency
    assert subscription.concurrency == 2


async def test_concurrency_is_changed_while_it_runs() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        await send(server.namesrv, *[b"%d" % number for number in range(20)])
        running, release = 0, asyncio.Event()

        async def handle(message: MessageExt) -> None:
            nonlocal running
            running += 1
            await release.wait()

        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest")
        subscription = consumer.subscribe("T", handle, concurrency=2)
        async with consumer:
            await until(lambda: running == 2)
            await asyncio.sleep(0.1)
            assert running == 2
            subscription.concurrency = 5
            await until(lambda: running == 5)
            release.set()
            await until(lambda: running == 20)
