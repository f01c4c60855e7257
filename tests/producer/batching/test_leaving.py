"""When gathered messages leave: at once, with an answer, at a bound, after a linger, at a flush or a stop."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Batching, errors

from ...support.fakes import TOPIC, Cluster, late, silence
from ..support import Calls, message, messages, outcomes, producer, spin, timed, until
from .support import BATCH, ONE_LANE, at_rest, later, numbers, requests

pytestmark = pytest.mark.virtual_time


async def test_a_send_goes_out_at_once_when_its_lane_is_idle(cluster: Cluster) -> None:
    async with producer(cluster, batching=True) as sender:
        for item in messages(3):
            await sender.send(item)
            await sender.send(item, key="k")
    assert [sent.code for sent in cluster.sends] == [310] * 6, "alone it is an ordinary send"


async def test_while_a_request_is_under_way_messages_gather_and_leave_together_when_it_is_answered(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(message(b"first")))]
        for item in messages(10):
            await spin(3)
            calls.append(later(sender.send(item)))
        await asyncio.gather(*calls)
    assert requests(cluster) == [[b"first"], [item.body for item in messages(10)]]
    assert [sent.code for sent in cluster.sends] == [310, BATCH]


async def test_the_sends_of_one_iteration_of_the_loop_count_as_together(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(20)])
        await asyncio.gather(*[sender.send(item, key="k") for item in messages(20)])
    assert numbers(cluster) == [20, 20]


async def test_many_of_one_iteration_are_shared_out_over_the_free_lanes(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(lanes_per_broker=3), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(300)])
        await asyncio.gather(*[sender.send(item, key="k") for item in messages(300)])
    assert numbers(cluster) == [100, 100, 100, 300]


@pytest.mark.parametrize("bound", [{"max_messages": 10}, {"max_bytes": 850}], ids=["messages", "bytes"])
async def test_a_batch_that_reaches_a_bound_leaves_without_waiting_for_an_answer(
    cluster: Cluster, bound: dict[str, int]
) -> None:
    cluster.a.answer = silence
    async with producer(cluster, batching=Batching(lanes_per_broker=1, **bound), topics=[TOPIC], stop_timeout=0) as sender:
        calls = [later(sender.send(message(b"first")))]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(25)]
        await until(lambda: len(cluster.sends) == 3)
        await asyncio.sleep(0.02)
        assert numbers(cluster) == [1, 10, 10]
    await outcomes(*calls)


async def test_a_batch_takes_at_most_max_bytes_as_it_is_on_the_wire(cluster: Cluster) -> None:
    items = [message(b"x" * (7 * number % 400 + 1), tags="ü" * (number % 7)) for number in range(300)]
    async with producer(cluster, batching=Batching(max_bytes=2000), topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in items], *[sender.send(item, key=1) for item in items])
    batches = [sent for sent in cluster.sends if sent.code == BATCH]
    assert 1500 < max(len(sent.body) for sent in batches) <= 2000
    assert sum(numbers(cluster)) == 600


async def test_a_message_that_alone_takes_more_than_max_bytes_goes_singly(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(max_bytes=300), topics=[TOPIC]) as sender:
        items = [message(b"x" * 300)] * 3
        await asyncio.gather(*[sender.send(item) for item in items], *[sender.send(item, key=1) for item in items])
    assert numbers(cluster) == [1] * 6


@pytest.mark.parametrize("options", [{"max_messages": 1}, {"max_bytes": 1}], ids=str)
async def test_bounds_of_one_leave_ordinary_sends(cluster: Cluster, options: dict[str, int]) -> None:
    async with producer(cluster, batching=Batching(**options)) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(50)], sender.send(message(), key="k"))
        assert at_rest(sender)
    assert sorted(result.queue_offset for result in results) == list(range(51))
    assert numbers(cluster) == [1] * 51


async def test_linger_lets_the_first_wait_for_others(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(linger=0.1), topics=[TOPIC]) as sender:
        with timed(0.1, 0.15):
            calls = []
            for item in messages(5):
                calls.append(later(sender.send(item)))
                await asyncio.sleep(0.01)
            await asyncio.gather(*calls)
    assert numbers(cluster) == [5]


async def test_a_flush_does_not_linger(cluster: Cluster) -> None:
    async with producer(cluster, batching=Batching(linger=5.0), topics=[TOPIC]) as sender:
        futures = [await sender.send_async(item) for item in messages(5)]
        with timed(most=0.1):
            await sender.flush()
        assert all(future.done() for future in futures)


async def test_a_stop_sends_what_has_gathered(cluster: Cluster) -> None:
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(message()))]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(5)]
        await spin(3)
    assert {type(result).__name__ for result in await outcomes(*calls)} == {"SendResult"}


async def test_a_stop_that_has_no_time_fails_every_call(cluster: Cluster) -> None:
    cluster.a.answer = silence
    calls = Calls()
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC], stop_timeout=0.0) as sender:
        waits = [later(sender.send(message())), later(sender.send(message(), key="k"))]
        await until(lambda: len(cluster.sends) == 2)
        waits += [later(sender.send(item)) for item in messages(5)]
        waits += [later(sender.send(item, key="k")) for item in messages(5)]
        futures = [await sender.send_async(item, **calls.both) for item in messages(5)]
        await spin(5)
    failures = await outcomes(*waits, *futures)
    assert {type(error) for error in failures} == {errors.ClientStateError}
    assert [error.maybe_stored for error in failures] == [True, True, *[False] * 15]
    assert len(calls.errors) == 5
