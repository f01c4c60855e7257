"""The order of keyed sends on real brokers, which work on requests in several threads."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, run
from rmq_async.errors import SystemBusyError
from rmq_async.testing.cluster import RealCluster

from .accounting import read_all
from .conftest import NO_TIMERS

RUNS = 5
QUEUES = 4
KEYS = 4
SENDS = 800
"""Of one run, all at once."""

Way = Callable[[Producer, Message, int], Awaitable[Any]]


@pytest.fixture(scope="module")
def stock() -> Iterator[RealCluster]:
    """A broker with stock settings, which answers SYSTEM_BUSY to what has waited for 200 ms."""
    cluster = RealCluster(profile="stock", broker_conf=NO_TIMERS)
    run(cluster.start())
    try:
        yield cluster
    finally:
        run(cluster.stop())


async def by_key(producer: Producer, message: Message, lane: int) -> Any:
    return await producer.send(message, key=f"key-{lane}")


async def by_queue(producer: Producer, message: Message, lane: int) -> Any:
    return await producer.send(message, queue=MessageQueue(message.topic, "broker-a", lane))


async def by_selector(producer: Producer, message: Message, lane: int) -> Any:
    return await producer.send(message, selector=lambda queues, _message, key: queues[key], key=lane)


async def asynchronously(producer: Producer, message: Message, lane: int) -> Any:
    return await (await producer.send_async(message, key=f"key-{lane}"))


async def of_all_kinds(producer: Producer, message: Message, lane: int) -> Any:
    """Large ones, which are compressed and go alone, and batches among the others."""
    queue, number = MessageQueue(message.topic, "broker-a", lane), int(message.body[7:])
    if number % 10 == 0:
        return await producer.send(Message(message.topic, message.body + b" " * 5000), queue=queue)
    if number % 7 == 0:
        return await producer.send_batch([message], queue=queue)
    return await producer.send(message, queue=queue)


def inversions(bodies: list[bytes]) -> int:
    """Neighbours among those of one run and lane of which the later call is stored first; ``bodies``: as they are stored."""
    lanes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for body in bodies:
        run_number, number = map(int, body.split())
        lanes[run_number, number % KEYS].append(number)
    return sum(first > second for lane in lanes.values() for first, second in pairwise(lane))


async def burst(namesrv: str, way: Way, runs: int = RUNS) -> None:
    """Sends in runs, each from a cold client; raises where one fails, unless the broker was busy: a machine that stops it for
    200 ms makes it refuse what waits."""
    topic = f"order-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=QUEUES)
    acknowledged = 0
    for run_number in range(runs):
        async with Producer("order", namesrv=namesrv, timeout=20.0) as producer:
            items = [Message(topic, b"%06d %06d" % (run_number, number)) for number in range(SENDS)]
            sends = [way(producer, item, number % KEYS) for number, item in enumerate(items)]
            results = await asyncio.gather(*sends, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        assert [each for each in failures if not isinstance(each, SystemBusyError)] == []
        assert {result.attempts for result in results if not isinstance(result, BaseException)} == {1}
        acknowledged += SENDS - len(failures)
    assert acknowledged > runs * SENDS * 0.8
    read = await read_all(namesrv, topic)
    assert len(read) == acknowledged
    bodies: dict[MessageQueue, list[bytes]] = defaultdict(list)
    for found in sorted(read, key=lambda each: each.queue_offset):
        bodies[found.queue].append(found.body)
    assert {queue: inversions(stored) for queue, stored in bodies.items()} == dict.fromkeys(bodies, 0)


def test_keyed_bursts_are_stored_in_order(stock: RealCluster) -> None:
    run(burst(stock.namesrv, by_key))


@pytest.mark.parametrize("way", [by_queue, by_selector, asynchronously, of_all_kinds])
def test_ordered_burst_is_stored_in_order(stock: RealCluster, way: Way) -> None:
    run(burst(stock.namesrv, way, runs=2))


def test_keyed_burst_on_an_old_broker(old_cluster: RealCluster) -> None:
    run(burst(old_cluster.namesrv, by_key, runs=1))
