"""Messages that are encoded before they gather, beside messages that are not, and places of queues that are used again."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import force_setattr

from rmq_async import MessageQueue
from rmq_async.producer.batching.batcher import IDLE_KEPT

from ...support.fakes import TOPIC, Cluster, each, late, refuse, stored
from ..support import core_of, message, outcomes, producer, queue_places, spin, until
from .support import BATCH, ONE_LANE, at_rest, later, refuse_bodies, requests

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("code", [13, 29])
async def test_refused_batch_mixed_keeps_ids_and_order(cluster: Cluster, code: int) -> None:
    """Plain messages, messages with keys and those of the general path in one batch: its halves have the same ids."""
    cluster.a.answer = refuse_bodies(code, lambda body: body == b"7")
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        sent = [
            sender.send(
                message(b"%d" % number, **({"keys": f"k{number}"} if number % 2 else {})), timeout=(3.0, None)[number % 3 > 0]
            )
            for number in range(12)
        ]
        results = await outcomes(*sent)
        assert at_rest(sender)
    assert [number for number, result in enumerate(results) if isinstance(result, BaseException)] == [7]
    ids: dict[bytes, set[bytes]] = {}
    for request in cluster.sends:
        for record in request.batch if request.code == BATCH else ():
            ids.setdefault(record.body, set()).add(record.properties)
    assert {body: len(properties) for body, properties in ids.items()} == {b"%d" % number: 1 for number in range(12)}
    for number, result in enumerate(results):
        if number != 7:
            assert result.msg_id.encode() in next(iter(ids[b"%d" % number]))
    assert requests(cluster)[0] == [b"%d" % number for number in range(12)]


async def test_retried_encoded_message_keeps_its_id(pair: Cluster) -> None:
    pair.a.answer = pair.b.answer = each(refuse(2), stored)
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        result = await sender.send(message(b"one", tags="t", keys="k"))
        assert at_rest(sender)
    assert result.attempts == 2
    assert [result.msg_id in sent.fields["i"] for sent in pair.sends] == [True, True]


async def test_cancelled_encoded_message_is_left_out(cluster: Cluster) -> None:
    cluster.a.answer = late(0.05)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        first = later(sender.send(message(b"first")))
        await until(lambda: cluster.sends)
        calls = [later(sender.send(message(b"%d" % number, keys="k"))) for number in range(3)]
        await spin(3)
        calls[1].cancel()
        await first
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert at_rest(sender)
    assert isinstance(results[1], asyncio.CancelledError)
    assert requests(cluster) == [[b"first"], [b"0", b"2"]]


async def test_places_of_queues_are_used_again_and_bounded(cluster: Cluster) -> None:
    async with producer(cluster, topics=[TOPIC]) as sender:
        batcher = core_of(sender).batcher
        await sender.send(message(), queue=MessageQueue(TOPIC, "a", 0))
        assert not queue_places(batcher)
        for _ in range(2):
            for number in range(IDLE_KEPT + 20):
                await sender.send(message(), queue=MessageQueue(TOPIC, "a", number))
            assert (queue_places(batcher), batcher.idle) == ([], IDLE_KEPT)
    assert batcher.idle == 0


async def test_used_place_after_a_cancelled_send_keeps_order(cluster: Cluster) -> None:
    """A place that a cancelled call has left is used again: each later message is stored, in the order of the calls."""
    async with producer(cluster, topics=[TOPIC]) as sender:
        for round_ in range(5):
            calls = [later(sender.send(message(b"%d %d" % (round_, number), sharding_key="k"))) for number in range(4)]
            await asyncio.sleep(0)
            calls[round_ % 4].cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [isinstance(result, BaseException) for result in results] == [at == round_ % 4 for at in range(4)]
            await until(lambda: at_rest(sender))
    bodies = [body for request in requests(cluster) for body in request]
    assert bodies == sorted(bodies)
    assert len(bodies) == len(set(bodies))
    assert {b"%d %d" % (round_, at) for round_ in range(5) for at in range(4) if at != round_ % 4} <= set(bodies)


async def test_message_changed_after_the_call_is_sent_as_it_was(cluster: Cluster) -> None:
    changed = message(b"1", properties={"a": "b"})
    cluster.a.answer = late(0.05)
    async with producer(cluster, batching=ONE_LANE, topics=[TOPIC]) as sender:
        first = later(sender.send(message(b"first")))
        await until(lambda: cluster.sends)
        calls = [later(sender.send(item)) for item in (message(b"0"), changed)]
        await spin(3)
        force_setattr(changed, "properties", {"a": "x" * 40_000})
        await asyncio.gather(first, *calls)
    assert [b"xx" in record.properties for record in cluster.sends[1].batch] == [False, False]
