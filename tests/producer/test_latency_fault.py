"""A producer with ``latency_fault`` on scripted brokers: who is left alone, for how long, and what the others get."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import monotonic
from typing import Any

import pytest
from msgspec.structs import replace

from rmq_async import FaultTable, MessageQueue, errors, select_best
from rmq_async.producer.routing import broker_probe as detector
from rmq_async.producer.routing.fault_table import LatencyTable
from rmq_protocol.constants import RequestCode

from ..support.fakes import TOPIC, Cluster, Link, Sent, late, refuse, silence, stored
from ..support.instances import client_of
from .support import Send, core_of, every_way, is_available, message, messages, outcomes, producer, spin, timed, until

pytestmark = pytest.mark.virtual_time

QUICK = FaultTable((0.02, 0.1), (0.0, 0.3), isolation=0.2)
"""Answers may take 0.1 s; a broker that needs longer, or fails, is left alone for 0.3 s."""


def faulty(cluster: Cluster, **options: Any) -> Any:
    """A producer whose attempts have 0.2 s while another broker is left."""
    return producer(cluster, **({"latency_fault": True, "timeout": 0.6} | options))


def faults_of(sender: Any) -> LatencyTable:
    faults = core_of(sender).faults
    assert isinstance(faults, LatencyTable)
    return faults


def chi_square(counts: Counter[MessageQueue], queues: int) -> float:
    assert len(counts) == queues
    each = counts.total() / queues
    return sum((count - each) ** 2 / each for count in counts.values())


@every_way(2)
async def test_a_silent_broker_is_left_alone_after_its_first_attempt(cluster: Cluster, send: Send) -> None:
    cluster.a.answer = silence
    async with faulty(cluster) as sender:
        while not cluster.a.sends:
            result = await send(sender)
        assert result.attempts == 2
        at_a = len(cluster.a.sends)
        results = [await send(sender) for _ in range(20)]
        assert {result.attempts for result in results} == {1}
        assert len(cluster.a.sends) == at_a


async def test_without_it_a_silent_broker_is_tried_again_and_again(pair: Cluster) -> None:
    pair.a.answer = silence
    async with producer(pair, timeout=0.6, latency_fault=False) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(8)])
        await asyncio.gather(*[sender.send(item) for item in messages(8)])
        assert core_of(sender).selection is None
        assert core_of(sender).plain_below > 0
    assert len(pair.a.sends) == 8


@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
async def test_all_queues_are_used_evenly(trio: Cluster, on: bool) -> None:
    async with producer(trio, latency_fault=on) as sender:
        for _ in range(5):
            await asyncio.gather(*[sender.send(item) for item in messages(60)])
        assert core_of(sender).plain_below > 0  # the shortest way is the one that was taken
    assert chi_square(Counter(sent.queue for sent in trio.sends), 6) == 0


async def test_the_queues_that_are_left_are_used_evenly(trio: Cluster) -> None:
    async with faulty(trio) as sender:
        await sender.fetch_publish_queues(TOPIC)
        faults_of(sender).update("b", 1.0, isolated=True, reachable=False, now=monotonic())
        for _ in range(5):
            await asyncio.gather(*[sender.send(item) for item in messages(40)])
    assert chi_square(Counter(sent.queue for sent in trio.sends), 4) == 0
    assert not trio.b.sends


async def test_a_broker_is_on_trial_when_its_time_is_over_and_used_again_once_it_works(pair: Cluster) -> None:
    pair.a.answer = refuse(14)
    table = FaultTable((0.4, 0.5), (0.0, 0.3), isolation=0.6)  # above what the other broker takes on a busy machine
    async with faulty(pair, fault_table=table) as sender:
        while not pair.a.sends:
            await sender.send(message())
        began, at_a = monotonic(), len(pair.a.sends)
        pair.a.answer = silence
        while len(pair.a.sends) == at_a:
            await asyncio.gather(*[sender.send(item) for item in messages(4)])
        assert monotonic() - began > 0.25
        assert len(pair.a.sends) == at_a + 1  # of four at a time one was tried on it
        pair.a.answer = stored
        await until(lambda: is_available(faults_of(sender), "a", monotonic()))
        await sender.send(message())
        await sender.send(message())
        await sender.send(message())
        assert len(faults_of(sender).items) == 0
        before = len(pair.a.sends)
        await asyncio.gather(*[sender.send(item) for item in messages(40)])
        assert len(pair.a.sends) == before + 20


async def test_a_slow_broker_is_left_alone_though_it_answers(pair: Cluster) -> None:
    pair.a.answer = late(0.12)
    async with faulty(pair, fault_table=QUICK) as sender:
        results = [await sender.send(message()) for _ in range(10)]
    assert {result.attempts for result in results} == {1}
    assert len(pair.a.sends) == 1


async def test_an_attempt_that_is_still_unanswered_keeps_others_away(pair: Cluster) -> None:
    async with faulty(pair, fault_table=QUICK, timeout=3.0) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        pair.a.answer = silence
        calls, began = [], monotonic()
        while monotonic() < began + 0.3:
            calls.append(asyncio.ensure_future(sender.send(message())))
            await asyncio.sleep(0.005)
        assert 0.05 < pair.a.times[-1] - pair.a.times[2] < 0.2
        assert not faults_of(sender).items  # none has failed yet: they have a second
        for call in calls:
            call.cancel()
        await outcomes(*calls)
        assert not is_available(faults_of(sender), "a", monotonic())  # they were given up, and late by then
        results = await asyncio.gather(*[sender.send(item) for item in messages(4)])
        assert {result.queue.broker_name for result in results} == {"b"}


@every_way(1)
async def test_every_way_reports_the_outcome_of_its_attempt(cluster: Cluster, send: Send) -> None:
    table = FaultTable((0.02, 0.4), (0.0, 0.3), isolation=0.5)
    broker = cluster.a
    async with faulty(cluster, fault_table=table, timeout=5.0, retries=0, async_retries=0, async_limit=1) as sender:
        await send(sender)
        items = faults_of(sender).items
        for options in ({}, {"timeout": 4.0}):  # with options an awaited send takes the general way
            broker.answer = late(0.1)
            await asyncio.gather(send(sender, **options), send(sender, **options))
            assert not items  # to wait for a credit is no fault of the broker
            broker.answer = late(0.45)
            await send(sender, **options)
            assert items["a"].latency > 0.4
            broker.answer = stored
            await asyncio.sleep(0.001)  # what begins when the late one ends says nothing
            await send(sender, **options)
            assert not items
            broker.answer = refuse(14)
            with pytest.raises(errors.ServiceNotAvailableError):
                await send(sender, **options)
            assert set(items) == {"a"}
            assert faults_of(sender).silent() == ()
            broker.answer = silence
            items.clear()
            call = asyncio.ensure_future(send(sender, **options))
            await asyncio.sleep(0.45)
            call.cancel()
            await outcomes(call)
            assert set(items) == {"a"}  # it never ended, but it took long
            items.clear()


@every_way(1)
async def test_a_call_that_left_its_broker_no_time_blames_no_broker(cluster: Cluster, send: Send) -> None:
    table = FaultTable((0.1, 0.5), (0.0, 0.3), isolation=1.0)
    async with faulty(cluster, fault_table=table, retries=0, async_retries=0, async_limit=1) as sender:
        await send(sender)
        cluster.a.answer = late(0.15)
        first = asyncio.ensure_future(send(sender))
        await until(lambda: len(cluster.a.sends) == 2)
        with pytest.raises(errors.RequestTimeoutError):
            await send(sender, timeout=0.2)  # most of it goes by while the first has the only credit
        assert len(cluster.a.sends) == 3
        assert not faults_of(sender).items
        cluster.a.answer = silence
        with pytest.raises(errors.RequestTimeoutError):
            await send(sender, timeout=0.12)
        assert faults_of(sender).silent() == ("a",)
        await first


@every_way(2)
async def test_every_way_reports_the_outcome_of_its_further_attempts(cluster: Cluster, send: Send) -> None:
    async with faulty(cluster, fault_table=QUICK, timeout=1.2) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        faults = faults_of(sender)
        faults.update("b", 1.0, isolated=True, reachable=False, now=monotonic())  # so that the first attempt goes to a
        cluster.a.answer, cluster.b.answer = refuse(14), late(0.12)
        assert (await send(sender)).attempts == 2
        assert faults.silent() == ()  # both have answered
        assert [faults.items[broker].latency > 0.1 for broker in "ab"] == [False, True]
        faults.items.clear()
        sends: list[str] = []

        def first_late(link: Link, sent: Sent) -> None:
            sends.append(sent.broker.name)
            (late(0.6) if len(sends) == 1 else silence)(link, sent)

        cluster.answer(first_late)
        assert (await send(sender)).queue.broker_name == sends[0]  # 0.2 s later than it should, while the other was waited for
        one, other = [faults.items[broker] for broker in sends]
        assert one.reachable_from > 0 == other.reachable_from
        assert 0.1 < other.latency < 0.39 < one.latency


async def test_a_further_attempt_gets_the_whole_rest_where_only_isolated_brokers_are_left(trio: Cluster) -> None:
    trio.a.answer, trio.b.answer = late(0.05, refuse(1)), late(0.4)
    async with faulty(trio) as sender:
        await sender.fetch_publish_queues(TOPIC)
        for broker in "bc":
            faults_of(sender).update(broker, 1.0, isolated=True, reachable=False, now=monotonic())
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: trio.a.sends)
        faults_of(sender).proved("b")
        result = await call
    assert (result.queue.broker_name, result.attempts) == ("b", 2)


async def test_with_only_isolated_brokers_left_an_attempt_gets_the_whole_time(pair: Cluster) -> None:
    async with faulty(pair) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        pair.answer(late(0.3))
        faults_of(sender).update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        for way in (sender.send, sender.send_async):
            with timed(0.3, 0.3):
                result = await way(message())
                result = await result if isinstance(result, asyncio.Future) else result
            assert (result.queue.broker_name, result.attempts) == ("b", 1)
        assert len(pair.b.sends) == 4


async def test_brokers_that_are_all_left_alone_are_used_all_the_same_those_that_answer_first(pair: Cluster) -> None:
    async with faulty(pair) as sender:
        await sender.fetch_publish_queues(TOPIC)
        faults = faults_of(sender)
        faults.update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        faults.update("b", 1.0, isolated=True, reachable=True, now=monotonic())
        assert (await sender.send(message())).queue.broker_name == "b"
        assert faults.silent() == ("a",)
        await asyncio.gather(*[sender.send(item) for item in messages(9)])
        assert not pair.a.sends


async def test_a_retry_goes_to_a_broker_that_was_not_tried_even_if_it_is_left_alone(pair: Cluster) -> None:
    pair.b.answer = refuse(1)
    async with faulty(pair) as sender:
        await sender.fetch_publish_queues(TOPIC)
        faults_of(sender).update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        result = await sender.send(message())
    assert (result.queue.broker_name, result.attempts) == ("a", 2)


@pytest.mark.parametrize(
    ("answer", "isolates"),
    [
        (refuse(2, "busy"), True),
        (refuse(14), True),
        (refuse(215), True),
        (refuse(13, "too large"), False),
        (refuse(16, "check signature failed."), False),
        (refuse(16, "User:bob has no permission to access Topic:T"), False),
    ],
)
async def test_which_answers_isolate(pair: Cluster, answer: Any, isolates: bool) -> None:
    pair.a.answer = answer
    async with faulty(pair, retries=0) as sender:
        await outcomes(*[sender.send(item) for item in messages(4)])
        await outcomes(*[sender.send(item) for item in messages(8)])
    assert len(pair.a.sends) == (2 if isolates else 6)


async def test_an_explicit_queue_is_kept_to_and_clears_its_broker_by_working(pair: Cluster) -> None:
    async with faulty(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        faults_of(sender).update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        await asyncio.sleep(0.002)
        await sender.send(message(), queue=queues[0])
        assert len(pair.a.sends) == 1
        assert len(faults_of(sender).items) == 0


async def test_one_way_sends_avoid_brokers_and_report_only_connects_that_failed(pair: Cluster) -> None:
    await pair.a.stop()
    async with faulty(pair) as sender:
        queues = await sender.fetch_publish_queues(TOPIC)
        with pytest.raises(errors.ConnectError):
            await sender.send_oneway(message(), queue=queues[0])
        assert faults_of(sender).silent() == ("a",)
        for item in messages(6):
            await sender.send_oneway(item)
        assert faults_of(sender).silent() == ("a",)
        await sender.flush()
    assert len(pair.b.sends) == 6


async def test_a_broker_that_left_the_route_comes_back_with_a_clean_slate(pair: Cluster) -> None:
    whole = pair.route()
    async with faulty(pair) as sender:
        await sender.fetch_publish_queues(TOPIC)
        routes, faults = (await client_of(sender)).routes, faults_of(sender)
        faults.update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        first, second = whole.queue_datas
        pair.name_server.routes[TOPIC] = replace(whole, queue_datas=(replace(first, perm=4), second))
        await routes.refresh(TOPIC)
        await sender.send(message())
        assert len(faults.items) == 0
        pair.name_server.routes[TOPIC] = whole
        await routes.refresh(TOPIC)
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        assert len(pair.a.sends) == 2


async def test_a_selector_of_the_call_and_one_around_select_best_avoid_faulty_brokers_too(trio: Cluster) -> None:
    async def not_c(queues: Any, item: Any, key: Any) -> Any:
        await asyncio.sleep(0)
        return select_best([queue for queue in queues if queue.broker_name != "c"], item, key)

    async with faulty(trio) as plain, faulty(trio, group="other", queue_selector=not_c) as custom:
        for sender in (plain, custom):
            await sender.fetch_publish_queues(TOPIC)
            faults_of(sender).update("a", 1.0, isolated=True, reachable=False, now=monotonic())
        results = await asyncio.gather(*[plain.send(item, selector=select_best) for item in messages(8)])
        assert {result.queue.broker_name for result in results} == {"b", "c"}
        results = await asyncio.gather(*[custom.send(item) for item in messages(8)])
        assert Counter(result.queue for result in results) == {trio.queue(trio.b, 0): 4, trio.queue(trio.b, 1): 4}


async def test_pick_one_at_least_takes_the_better_half(trio: Cluster) -> None:
    async with faulty(trio, fault_table=FaultTable.V4) as sender:
        await sender.fetch_publish_queues(TOPIC)
        for broker, latency in (("a", 2.0), ("b", 0.7), ("c", 3.0)):
            faults_of(sender).update(broker, latency, isolated=True, reachable=False, now=monotonic())
        await sender.send(message())
    assert [len(broker.sends) for broker in trio.brokers] == [0, 1, 0]


# -- the detector


async def test_the_detector_brings_back_a_broker_that_answers_again(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "INTERVAL", 0.03)
    monkeypatch.setattr(detector, "TIMEOUT", 0.02)
    pair.a.answer, pair.a.silent = silence, True
    async with faulty(pair, detector=True, request_timeout=0.2) as sender:
        while not pair.a.sends:
            await sender.send(message())
        await until(lambda: pair.a.codes[RequestCode.GET_MAX_OFFSET] >= 3)
        assert faults_of(sender).silent() == ("a",)
        assert pair.b.codes[RequestCode.GET_MAX_OFFSET] == 0
        pair.a.answer, pair.a.silent = stored, False
        await until(lambda: not faults_of(sender).items)
        asked = pair.a.codes[RequestCode.GET_MAX_OFFSET]
        assert {(await sender.send(message())).queue.broker_name for _ in range(4)} == {"a", "b"}
        await asyncio.sleep(0.1)
        assert pair.a.codes[RequestCode.GET_MAX_OFFSET] == asked


@pytest.mark.parametrize("code", [14, 1500])
async def test_an_answer_that_is_an_error_brings_no_broker_back(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(detector, "INTERVAL", 0.02)
    pair.a.answer = silence
    pair.a.answers[RequestCode.GET_MAX_OFFSET] = refuse(code)
    async with faulty(pair, detector=True, fault_table=FaultTable((0.02, 0.1), (0.0, 30.0), isolation=0.2)) as sender:
        while not pair.a.sends:
            await sender.send(message())
        await until(lambda: pair.a.codes[RequestCode.GET_MAX_OFFSET] >= 2)
        await asyncio.sleep(0.03)
        assert faults_of(sender).silent() == ("a",)


async def test_the_detector_connects_to_a_broker_that_was_down(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "INTERVAL", 0.03)
    await pair.a.stop()
    async with faulty(pair, detector=True) as sender:
        while not faults_of(sender).items:
            await sender.send(message())
        await asyncio.sleep(0.1)
        assert faults_of(sender).silent() == ("a",)
        await pair.a.start()
        await until(lambda: not faults_of(sender).items)


async def test_a_broker_that_answers_and_refuses_is_not_asked(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector, "INTERVAL", 0.02)
    pair.a.answer = refuse(2, "busy")
    async with faulty(pair, detector=True) as sender:
        while not pair.a.sends:
            await sender.send(message())
        await asyncio.sleep(0.1)
        assert pair.a.codes[RequestCode.GET_MAX_OFFSET] == 0
        assert not is_available(faults_of(sender), "a", monotonic())


async def test_the_detectors_task_ends_with_the_producer_and_is_there_only_where_it_is_on(pair: Cluster) -> None:
    def running() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks() if "detector" in task.get_name()]

    async with faulty(pair):
        await spin()
        assert running() == []
    sender = faulty(pair, detector=True)
    for _ in range(2):
        await sender.start()
        assert len(running()) == 1
        await sender.stop()
        assert running() == []
