"""The default, ``latency_fault="failures"``: which brokers are left alone, for how long, and how they come back."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from rmq_async import ConfigError, Producer, ProducerConfig, errors, machine, select_best
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer.routing.avoidance import KEPT, MOST_ITEMS
from rmq_async.producer.routing.suspects import FailureTable

from ..support.fakes import TOPIC, Cluster, cut, late, refuse, silence, stored
from ..support.instances import client_of
from .support import Send, awaited, core_of, every_way, is_available, message, messages, outcomes, producer, timed, until

pytestmark = pytest.mark.virtual_time

TIMEOUT = 0.9
"""Seconds of a call: a first attempt has 0.3 of them while another broker is left."""
AWAY = 1.0
"""Seconds that a broker is left alone at first."""


def at(cluster: Cluster) -> list[int]:
    """How many sends each broker has read."""
    return [len(broker.sends) for broker in cluster.brokers]


async def met(cluster: Cluster, sender: Any, send: Send = awaited) -> float:
    """Sends until one has met broker "a"; returns when that one began."""
    before, began = len(cluster.a.sends), monotonic()
    while len(cluster.a.sends) == before:
        began = monotonic()
        await send(sender)
    return began


# -- who is left alone


@every_way(2)
async def test_silent_broker_is_left_alone(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = silence
    async with producer(cluster, timeout=TIMEOUT) as sender:
        await met(cluster, sender, send)
        before = at(cluster)
        results = [await send(sender) for _ in range(30)]
        assert {result.attempts for result in results} == {1}
        assert at(cluster) == [before[0], before[1] + 30]


@pytest.mark.parametrize("answer", [cut, late(0.01, cut)])
async def test_lost_connection_counts_as_failure(pair: Cluster, answer: Any) -> None:
    pair.a.answer = answer
    async with producer(pair) as sender:
        await met(pair, sender)
        pair.a.answer = stored
        before = at(pair)
        assert {(await sender.send(message())).attempts for _ in range(20)} == {1}
        assert at(pair) == [before[0], before[1] + 20]


@every_way(2)
async def test_refused_connect_counts_as_failure(cluster: Cluster, send: Send) -> None:
    await cluster.a.stop()
    async with producer(cluster) as sender:
        attempts = Counter([(await send(sender)).attempts for _ in range(30)])
    assert attempts == {1: 29, 2: 1}


async def test_answer_of_any_code_is_no_failure(pair: Cluster) -> None:
    pair.a.answer = refuse(14)
    async with producer(pair) as sender:
        for _ in range(12):
            await sender.send(message())
    assert len(pair.a.sends) >= 5  # every second one, but for those that a retry takes the turn of


async def test_cancelled_call_blames_no_broker(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair) as sender:
        for _ in range(2):
            calls = [asyncio.ensure_future(sender.send(message())) for _ in range(8)]
            await asyncio.sleep(0.1)
            for call in calls:
                call.cancel()
            await outcomes(*calls)
    assert len(pair.a.sends) == 8


async def test_one_way_sends_avoid_dead_broker(pair: Cluster) -> None:
    await pair.a.stop()
    async with producer(pair, timeout=TIMEOUT) as sender:
        failed = 0
        for _ in range(40):
            try:
                await sender.send_oneway(message())
            except errors.ConnectError:
                failed += 1
        await sender.flush()
        assert failed == 1
        await until(lambda: len(pair.b.sends) == 39)


async def test_batched_sends_avoid_a_silent_broker(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, batching=True, timeout=TIMEOUT) as sender:
        await met(pair, sender)
        before = at(pair)
        results = await asyncio.gather(*[sender.send(item) for item in messages(400)])
        assert {result.attempts for result in results} == {1}
        assert at(pair)[0] == before[0]


async def test_suspect_is_reason_enough_to_cap_an_attempt(pair: Cluster) -> None:
    """It may be well again: a call that meets the other one, which falls silent now, is tried on it within its time."""
    pair.a.answer = cut
    async with producer(pair, timeout=2.4) as sender:
        await met(pair, sender)
        pair.a.answer, pair.b.answer = stored, silence
        assert (await sender.send(message())).queue.broker_name == "a"


async def test_select_best_avoids_for_selectors(trio: Cluster) -> None:
    def not_c(queues: Any, item: Any, key: Any) -> Any:
        return select_best([queue for queue in queues if queue.broker_name != "c"], item, key)

    trio.a.answer = cut
    async with producer(trio, queue_selector=not_c) as sender:
        await met(trio, sender)
        before = at(trio)
        for _ in range(6):
            await sender.send(message())
            await sender.send(message(), selector=select_best)
        assert at(trio)[0] == before[0]


async def test_fixed_queues_and_keys_avoid_no_broker(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, timeout=TIMEOUT, retries=1) as sender:
        await met(pair, sender)
        before = len(pair.a.sends)
        calls = [sender.send(message(), queue=pair.queue(pair.a)), *[sender.send(message(), key=key) for key in range(8)]]
        failures = [each for each in await outcomes(*calls) if isinstance(each, errors.RequestTimeoutError)]
        assert len(failures) == sum(len(sent.bodies) for sent in pair.a.sends[before:]) == 5


async def test_all_failing_brokers_are_used(pair: Cluster) -> None:
    pair.answer(silence)
    async with producer(pair, timeout=TIMEOUT, retries=1) as sender:
        with pytest.raises(errors.SendError):
            await sender.send(message())
        pair.answer(stored)
        before = at(pair)
        await asyncio.gather(*[sender.send(item) for item in messages(20)])
        assert at(pair) == [before[0] + 10, before[1] + 10]


async def test_only_broker_is_used_though_it_fails(cluster: Cluster) -> None:
    cluster.a.answer = cut
    async with producer(cluster, retries=0) as sender:
        await outcomes(*[sender.send(item) for item in messages(3)])
        cluster.a.answer = stored
        assert (await sender.send(message())).attempts == 1


async def test_nothing_is_avoided_with_false(pair: Cluster) -> None:
    pair.a.answer = cut
    async with producer(pair, latency_fault=False) as sender:
        for _ in range(12):
            await sender.send(message())
    assert len(pair.a.sends) >= 5  # every second one, but for those that a retry takes the turn of


@pytest.mark.parametrize("value", ["on", "FailureTable", None, 1, 0, ("failures",)])
def test_unknown_value_is_a_config_error(value: Any) -> None:
    with pytest.raises(ConfigError, match="latency_fault must be"):
        ProducerConfig(latency_fault=value)


@pytest.mark.parametrize("value", ["failures", False])
def test_detector_needs_latency_fault_true(value: Any) -> None:
    with pytest.raises(ConfigError, match="detector=True needs latency_fault=True"):
        ProducerConfig(latency_fault=value, detector=True)
    assert ProducerConfig().latency_fault == "failures"


# -- how they come back


@every_way(2)
async def test_recovered_broker_is_probed_by_one_send(cluster: Cluster, send: Send) -> None:
    async with producer(cluster, timeout=TIMEOUT) as sender:
        await asyncio.gather(*[send(sender) for _ in range(4)])  # there are connections to both
        cluster.a.answer = silence
        began, before = await met(cluster, sender, send), len(cluster.a.sends)
        cluster.a.answer = late(0.05)
        while len(cluster.a.sends) == before:
            await asyncio.gather(*[send(sender) for _ in range(8)])
            await asyncio.sleep(0.01)
        assert cluster.a.times[before] - began >= AWAY
        assert len(cluster.a.sends) == before + 1
        cluster.a.answer = stored
        results = await asyncio.gather(*[send(sender) for _ in range(8)])
        assert Counter(result.queue.broker_name for result in results) == {"a": 4, "b": 4}


async def test_restarted_broker_is_probed_once(pair: Cluster) -> None:
    """There is no connection when its time is over, and fifty sends leave at once."""
    await pair.a.stop()
    async with producer(pair) as sender:
        while (await sender.send(message())).attempts == 1:
            pass
        await pair.a.start()
        pair.a.answer = late(0.1)
        while not pair.a.sends:
            await asyncio.gather(*[sender.send(item) for item in messages(50)])
            await asyncio.sleep(0.01)
        assert len(pair.a.sends) == 1


@pytest.mark.parametrize("window", [1024, 0])
async def test_one_way_probe_is_ordinary_request(pair: Cluster, window: int) -> None:
    await pair.a.stop()
    async with producer(pair, oneway_window=window) as sender:
        with pytest.raises(errors.ConnectError):
            while True:
                await sender.send_oneway(message())
        await pair.a.start()
        await (await client_of(sender)).pool.connect(pair.a.address, 1.0)
        while not pair.a.sends:
            await sender.send_oneway(message())
            await asyncio.sleep(0.01)
        assert [sent.oneway for sent in pair.a.sends] == [False]
        faults = core_of(sender).faults
        assert faults is not None
        await until(lambda: not faults.items)
        before = len(pair.a.sends)
        for item in messages(20):
            await sender.send_oneway(item)
        await sender.flush()
        await until(lambda: len(pair.a.sends) == before + 10)


async def test_broker_elsewhere_is_used_at_once(pair: Cluster) -> None:
    await pair.a.stop()
    async with producer(pair, route_poll_interval=0.1) as sender:
        while (await sender.send(message())).attempts == 1:
            pass
        pair.a.port = 0
        await pair.a.start()
        pair.name_server.routes[TOPIC] = pair.route()
        with timed(most=0.6 * AWAY):
            while (await sender.send(message())).queue.broker_name != "a":
                await asyncio.sleep(0.01)


async def test_broker_off_the_route_is_forgotten(pair: Cluster) -> None:
    pair.a.answer = cut
    whole = pair.route()
    async with producer(pair, route_poll_interval=0.05) as sender:
        await met(pair, sender)
        pair.a.answer = stored
        with timed(most=0.6 * AWAY):
            pair.name_server.routes[TOPIC] = replace(whole, queue_datas=whole.queue_datas[1:])
            while len(await sender.fetch_publish_queues(TOPIC)) > 2:
                await asyncio.sleep(0.01)
            await sender.send(message())
            pair.name_server.routes[TOPIC] = whole
            while (await sender.send(message())).queue.broker_name != "a":
                await asyncio.sleep(0.01)


async def test_few_sends_touch_a_frozen_broker() -> None:
    """At 200 a second, on the embedded cluster: what the run on a real one shows with SIGSTOP."""
    async with EmbeddedRocketMQ(brokers=2) as server, Producer("group", namesrv=server.namesrv, timeout=TIMEOUT) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(8)])
        server.stall("broker-a")
        calls: list[tuple[float, asyncio.Task[Any]]] = []
        began = monotonic()
        while (now := monotonic()) < began + 2.5:
            calls.append((now - began, asyncio.ensure_future(sender.send(message()))))
            await asyncio.sleep(1 / 200)
        results = [(when, await call) for when, call in calls]
        later = [result for when, result in results if when > 1.0]
        touching = sum(result.attempts > 1 or result.queue.broker_name == "broker-a" for result in later)
        print(f"{touching} of {len(later)} sends touched the frozen broker")
        assert touching < 0.01 * len(later)
        server.resume("broker-a")


# -- what it costs


@contextmanager
def clock_readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """By function of the producer's modules."""
    counts: Counter[str] = Counter()
    clock = machine.monotonic

    def reading() -> float:
        frame = inspect.currentframe()
        assert frame is not None
        assert frame.f_back is not None
        reader = frame.f_back.f_code
        counts[reader.co_qualname] += "rmq_async/producer" in reader.co_filename
        return clock()

    with monkeypatch.context() as patch:
        patch.setattr(machine, "monotonic", reading)
        yield counts


async def test_success_reads_no_clock_for_failures(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {}
    for value in (False, "failures"):
        async with producer(pair, f"group-{value}", latency_fault=value) as sender:
            await asyncio.gather(*[sender.send(item) for item in messages(8)])
            with clock_readings(monkeypatch) as counts:
                for _ in range(50):
                    await sender.send(message())
                    await (await sender.send_async(message()))
                    await sender.send(message(tags="t"), key="k")
                    await sender.send_batch([message()])
                    await sender.send_oneway(message())
        readings[value] = sum(counts.values())
        print(value, counts)
    assert readings[False] > 0
    assert readings["failures"] <= readings[False]


# -- the table, with a clock of the test's own

T = 1000.0
LOST = errors.ConnectionLostError("gone")
LATE = errors.RequestTimeoutError("late", maybe_stored=True)


def test_failures_of_one_freeze_are_one() -> None:
    failures = FailureTable()
    for step in range(200):  # under way when it froze; each timed out after a second
        failures.failed("a", LATE, 1.0, T + step / 200)
    assert not is_available(failures, "a", T + 1.99)
    assert failures.on_trial("a", T + 2.0)


def test_wait_doubles_up_to_its_limit() -> None:
    failures, now, waits = FailureTable(), T, []
    for _ in range(8):
        failures.failed("a", LATE, 0.5, now)
        waits.append(failures.items["a"].available_from - now)
        now = failures.items["a"].available_from + 0.5
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    failures.succeeded("a", 0.01, now + 30.0)
    assert not failures.items


def test_call_without_time_blames_no_broker() -> None:
    failures = FailureTable()
    failures.failed("a", LATE, 0.04, T)
    failures.failed("a", asyncio.CancelledError(), 3.0, T)
    failures.failed("a", errors.ServiceNotAvailableError("no"), 3.0, T)
    assert not failures.items
    failures.failed("a", LATE, 0.06, T)
    assert set(failures.items) == {"a"}


def test_success_begun_before_the_failure_clears_nothing() -> None:
    failures = FailureTable()
    failures.failed("a", LOST, 0.1, T)
    failures.succeeded("a", 0.2, T + 0.1)
    assert failures.avoided({"a", "b"}, T + 0.1) == {"a"}
    failures.succeeded("a", 0.05, T + 0.1)
    assert failures.avoided({"a", "b"}, T + 0.1) == frozenset()


def test_trial_ends_by_itself() -> None:
    busy = {"a"}
    failures = FailureTable(busy.__contains__)
    failures.failed("a", LOST, 0.1, T)
    brokers = frozenset("ab")
    assert failures.best(brokers, T + 1.0) == {"b"}  # an attempt is under way
    busy.clear()
    assert failures.best(brokers, T + 1.0) is brokers
    failures.chosen("a", T + 1.0)
    assert failures.best(brokers, T + 1.9) == {"b"}
    assert failures.best(brokers, T + 2.0) is brokers


def test_table_is_bounded_and_forgets() -> None:
    failures = FailureTable()
    for number in range(MOST_ITEMS + 10):
        failures.failed(f"broker-{number}", LOST, 0.1, T)
    assert len(failures.items) == MOST_ITEMS
    failures.failed("another", LOST, 0.1, T + 1.0 + KEPT + 0.1)
    assert set(failures.items) == {"another"}
