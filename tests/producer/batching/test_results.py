"""Each caller of a batch has its own result, deadline and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from rmq_async import Message, errors

from ...support.fakes import TOPIC, Cluster, each, fields, late, status, stored
from ..support import Calls, message, messages, outcomes, producer, spin, timed, until
from .support import ONE_LANE, at_rest, later, numbers, refuse_bodies, requests

pytestmark = pytest.mark.virtual_time


async def test_each_caller_gets_its_own_result(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        items = [message(b"%d" % number, unique_id="mine" if number == 3 else None) for number in range(10)]
        results = await asyncio.gather(*[sender.send(item) for item in items])
    (sent,) = cluster.sends
    for item, result, record in zip(items, results, sent.batch, strict=True):
        assert record.body == item.body
        assert f"UNIQ_KEY\x01{result.msg_id}\x02".encode() in record.properties
    assert results[3].msg_id == "mine"
    assert len({result.msg_id for result in results}) == len({result.offset_msg_id for result in results}) == 10
    assert [result.queue_offset for result in results] == list(range(10))
    assert {(result.queue, result.attempts, result.region_id) for result in results} == {(sent.queue, 1, "DefaultRegion")}


async def test_results_where_the_broker_stores_the_batch_as_one_record(cluster: Cluster) -> None:
    cluster.a.answer = fields(msgId="00FF")
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert [(result.offset_msg_id, result.queue_offset) for result in results] == [("00FF", number) for number in range(5)]


async def test_results_that_are_stored_and_not_confirmed(cluster: Cluster) -> None:
    cluster.a.answer = status(10)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert {result.status.name for result in results} == {"FLUSH_DISK_TIMEOUT"}


async def test_unconfirmed_batches_go_to_another_broker_on_demand(pair: Cluster) -> None:
    pair.a.answer = pair.b.answer = each(status(10), stored)
    options = {"retry_another_broker_when_not_store_ok": True, "topics": [TOPIC]}
    async with producer(pair, batching=True, **options) as sender:
        results = await asyncio.gather(*[sender.send(item) for item in messages(5)])
    assert numbers(pair) == [5, 5]
    assert {result.attempts for result in results} == {2}


async def test_messages_keep_all_that_they_say(cluster: Cluster) -> None:
    class Own(Message, frozen=True):
        pass

    item = Own(TOPIC, b"\x00\xff", tags="täg", keys=["k1", "k2"], flag=-5, properties={"colour": "grün"})
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for _ in range(3)], *[sender.send(message()) for _ in range(3)])
    (sent,) = cluster.sends
    for record in sent.batch[:3]:
        assert (record.body, record.flag) == (item.body, -5)
        for part in ("TAGS\x01täg\x02", "KEYS\x01k1 k2\x02", "colour\x01grün\x02"):
            assert part.encode() in record.properties


async def test_callbacks_are_called_exactly_once(cluster: Cluster) -> None:
    cluster.a.answer = refuse_bodies(13, lambda body: body == b"000002")
    calls = [Calls() for _ in range(5)]
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        futures = [await sender.send_async(item, **one.both) for item, one in zip(messages(5), calls, strict=True)]
        await outcomes(*futures)
        await sender.flush()
        assert at_rest(sender)
    assert [(len(one.results), len(one.errors)) for one in calls] == [(1, 0), (1, 0), (0, 1), (1, 0), (1, 0)]


async def test_a_deadline_fails_that_caller_alone(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item, timeout=0.1 if number == 2 else None)) for number, item in enumerate(messages(5))]
        with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
            await calls.pop(2)
        assert caught.value.maybe_stored
        assert len(await asyncio.gather(*calls)) == 4
        assert at_rest(sender)
    assert numbers(cluster) == [5]


async def test_a_deadline_while_it_gathers_fails_that_caller_alone(cluster: Cluster) -> None:
    cluster.a.answer = late(0.3)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        for options in ({}, {"key": "k"}):
            cluster.a.sends.clear()
            first = later(sender.send(message(), **options))
            await until(lambda: cluster.sends)
            calls = [
                later(sender.send(item, timeout=0.1 if item.body[-1:] == b"2" else None, **options)) for item in messages(5)
            ]
            with timed(0.1, 0.1), pytest.raises(errors.RequestTimeoutError) as caught:
                await calls.pop(2)
            assert not caught.value.maybe_stored
            await asyncio.gather(first, *calls)
            assert [body for request in requests(cluster)[1:] for body in request] == [
                b"000000",
                b"000001",
                b"000003",
                b"000004",
            ]


async def test_a_cancellation_fails_that_caller_alone(cluster: Cluster) -> None:
    """While it gathers, and while its request is under way; awaited and deferred."""
    cluster.a.answer = late(0.1)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item)) for item in messages(3)]
        await until(lambda: cluster.sends)
        calls += [later(sender.send(item)) for item in messages(3)]
        callbacks = Calls()
        futures = [await sender.send_async(item, **callbacks.both) for item in messages(3)]
        await spin(3)
        for each_one in (calls[1], calls[4], futures[1]):
            each_one.cancel()
        results = await outcomes(*calls, *futures)
        assert at_rest(sender)
    assert [isinstance(result, BaseException) for result in results] == [False, True, False] * 3
    assert numbers(cluster) == [3, 4], "who was cancelled while it gathered is not sent"
    assert (len(callbacks.results), [type(error) for error in callbacks.errors]) == (2, [asyncio.CancelledError])
