"""Which queue a batch goes to, how many batches are under way, and the order of those of one queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Batching, Message, Producer, errors

from ...support.fakes import TOPIC, Cluster, MostUnderWay, late, silence
from ..support import message, messages, outcomes, producer, spin, until
from .support import ONE_LANE, later, numbers, refuse_bodies, requests

pytestmark = pytest.mark.virtual_time


async def test_without_key_or_selector_the_next_batch_takes_the_next_queue(pair: Cluster) -> None:
    async with producer(pair, batching=True, topics=[TOPIC]) as sender:
        queues = []
        for _ in range(8):
            results = await asyncio.gather(*[sender.send(item) for item in messages(10)])
            (queue,) = {result.queue for result in results}
            queues.append(queue)
    assert len(set(queues[:4])) == 4
    assert queues[4:] == queues[:4]


async def test_evenness_is_judged_per_batch(trio: Cluster) -> None:
    """Under load: as many batches for each queue, within the odd one."""
    trio.answer(late(0.002))
    async with producer(trio, batching=ONE_LANE, topics=[TOPIC]) as sender:

        async def worker() -> None:
            for item in messages(40):
                await sender.send(item)

        await asyncio.gather(*[worker() for _ in range(100)])
    counts = Counter(sent.queue for sent in trio.sends)
    assert len(counts) == 6
    brokers = Counter(sent.broker.name for sent in trio.sends)
    assert max(brokers.values()) - min(brokers.values()) <= len(trio.sends) / 4, brokers
    assert max(counts.values()) <= 2 * min(counts.values()), counts


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_few_batches_per_broker_may_be_under_way(pair: Cluster, lanes: int) -> None:
    pair.answer(silence)
    async with producer(pair, batching=Batching(lanes_per_broker=lanes), topics=[TOPIC], stop_timeout=0) as sender:
        calls = []
        for item in messages(20):
            calls.append(later(sender.send(item)))
            await spin(3)
        await until(lambda: len(pair.sends) == 2 * lanes)
        await asyncio.sleep(0.02)
        assert [len(broker.sends) for broker in pair.brokers] == [lanes, lanes]
    await outcomes(*calls)


async def test_messages_that_wait_for_less_have_batches_of_their_own(cluster: Cluster) -> None:
    items = [message(b"%d" % number, wait_store=number % 2 == 0) for number in range(10)]
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        await asyncio.gather(*[sender.send(item) for item in items])
        await asyncio.gather(*[sender.send(item, queue=cluster.queue()) for item in items])
    even, odd = [b"0", b"2", b"4", b"6", b"8"], [b"1", b"3", b"5", b"7", b"9"]
    assert sorted(requests(cluster)[:2]) == [even, odd]
    assert requests(cluster)[2:] == [[b"%d" % number] for number in range(10)], "in the order of a queue nothing passes"
    for sent in cluster.sends[:2]:
        wait = "true" if sent.batch[0].body == b"0" else "false"
        assert f"WAIT\x01{wait}".encode() in sent.batch[0].properties
        assert sent.properties["WAIT"] == wait


WISHES: dict[str, Callable[[Cluster], dict[str, Any]]] = {
    "queue": lambda cluster: {"queue": cluster.queue(cluster.a, 1)},
    "selector": lambda cluster: {"selector": lambda queues, _message, _key: queues[0]},
    "key": lambda cluster: {"key": "order 7"},
}


@pytest.mark.parametrize("choice", WISHES)
async def test_a_lane_that_carries_order_has_exactly_one_request_under_way(pair: Cluster, choice: str) -> None:
    under_way = MostUnderWay()
    pair.answer(under_way)
    items = messages(200)
    async with producer(pair, batching=Batching(max_messages=16)) as sender:
        options = WISHES[choice](pair)
        calls = []
        for item in items:
            large = item.body.endswith(b"7")
            sent = Message(TOPIC, item.body + b"x" * 5000) if large else item
            calls.append(later(sender.send(sent, **options) if item.body[-1] % 2 else _result(sender, sent, options)))
            if item.body.endswith(b"0"):
                await asyncio.sleep(0.001)
        results = await asyncio.gather(*calls)
    assert list(under_way.most.values()) == [1]
    offsets = [result.queue_offset for result in results]
    assert offsets == sorted(offsets)
    assert max(numbers(pair)) > 5


async def _result(sender: Producer, item: Message, options: dict[str, Any]) -> Any:
    return await (await sender.send_async(item, **options))


async def test_order_by_key_holds_over_a_split(cluster: Cluster) -> None:
    cluster.a.answer = refuse_bodies(13, lambda body: body == b"000005")
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        calls = [later(sender.send(item, key="k")) for item in messages(10)]
        await spin(4)
        calls += [later(sender.send(item, key="k")) for item in messages(3)]
        results = await outcomes(*calls)
    assert isinstance(results.pop(5), errors.MessageIllegalError)
    offsets = [result.queue_offset for result in results]
    assert offsets == list(range(12))


async def test_explicit_batches_for_a_queue_keep_their_place(cluster: Cluster) -> None:
    async with producer(cluster, batching=True, topics=[TOPIC]) as sender:
        queue = cluster.queue()
        first, batch, last = await asyncio.gather(
            sender.send(message(b"1"), queue=queue),
            sender.send_batch(messages(3), queue=queue),
            sender.send(message(b"2"), queue=queue),
        )
        future = await sender.send_batch_async(messages(2), queue=queue)
        assert len((await future).msg_ids) == 2
    assert (first.queue_offset, batch.queue_offset, last.queue_offset) == (0, 1, 4)
