"""Adaptive batching on real brokers: whose message is where, what one bad message does, and a broker that is killed."""

from __future__ import annotations

import asyncio
import random
import uuid
from time import monotonic
from typing import Any

import pytest

from rmq_async import Admin, Batching, Message, MessageQueue, Producer, SendResult, errors, run
from rmq_async.testing.cluster import RealCluster

from ..producer.support import core_of, gathers_nothing
from .accounting import judge, read_all

MESSAGES = 1000


async def new_topic(cluster: RealCluster, queues: int = 4) -> str:
    topic = f"batching-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=queues)
    return topic


async def read_back(cluster: RealCluster, topic: str) -> dict[tuple[MessageQueue, int], Any]:
    return {(found.queue, found.queue_offset): found for found in await read_all(cluster.namesrv, topic)}


@pytest.mark.parametrize("each_cluster", ["cluster", "old_cluster"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"key": "all of them"}], ids=["in turn", "in order"])
def test_concurrent_sends_are_stored_once_where_their_results_say(each_cluster: RealCluster, options: dict[str, Any]) -> None:
    async def main() -> None:
        topic = await new_topic(each_cluster)
        items = [Message(topic, b"%06d" % number, tags="t" if number % 3 else None) for number in range(MESSAGES)]
        async with Producer("batching", namesrv=each_cluster.namesrv, batching=True, timeout=10.0) as producer:
            results = await asyncio.gather(*[producer.send(item, **options) for item in items])
        read = await read_back(each_cluster, topic)
        assert len(read) == MESSAGES
        for item, result in zip(items, results, strict=True):
            found = read[result.queue, result.queue_offset]
            assert (found.body, found.tags) == (item.body, item.tags)
            assert (found.msg_id, found.offset_msg_id) == (result.msg_id, result.offset_msg_id)
        if options:
            assert [result.queue_offset for result in results] == list(range(MESSAGES))

    run(main())


def test_a_batch_that_is_larger_than_the_broker_takes_is_refused_whole_and_stored_nowhere(cluster: RealCluster) -> None:
    """By code 1 with an exception's text, so it is not split: ``max_bytes`` must fit the broker's ``maxMessageSize`` (4 MiB).

    No message was found that a stock broker refuses by 13 or 29 inside a batch: what could be wrong with one, clients refuse.
    """

    async def main() -> None:
        topic = await new_topic(cluster, queues=1)
        options = {"max_message_size": 8 << 20, "compress_over": 1 << 30, "timeout": 20.0, "topics": [topic]}
        batching = Batching(max_bytes=8 << 20)
        async with Producer("batching", namesrv=cluster.namesrv, batching=batching, **options) as producer:
            calls = [producer.send(Message(topic, b"x" * size)) for size in (100, 5 << 20, 100)]
            refused = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(error, errors.RocketMQError) and error.code == 1 for error in refused), refused
            await asyncio.gather(*[producer.send(Message(topic, b"%d" % number)) for number in range(10)])
        assert len(await read_back(cluster, topic)) == 10

    run(main())


def test_a_broker_killed_and_started_under_load_loses_nothing_acknowledged(two_brokers: RealCluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")

    async def main() -> None:
        chance = random.Random(seed)
        topic = await new_topic(two_brokers)
        victim = two_brokers.brokers[0]
        acknowledged: dict[str, SendResult] = {}
        failed: dict[str, BaseException] = {}
        attempted: list[str] = []
        over = False

        async with Producer(
            "batching", namesrv=two_brokers.namesrv, batching=True, timeout=5.0, route_poll_interval=1.0, topics=[topic]
        ) as producer:

            async def worker(number: int) -> None:
                count = 0
                while not over:
                    count += 1
                    name = f"{number}-{count}"
                    attempted.append(name)
                    try:
                        acknowledged[name] = await producer.send(Message(topic, name.encode()))
                    except errors.RocketMQError as error:
                        failed[name] = error
                    await asyncio.sleep(0.02)

            workers = [asyncio.ensure_future(worker(number)) for number in range(64)]
            await asyncio.sleep(chance.uniform(0.3, 0.8))
            await victim.kill()
            killed = monotonic()
            await asyncio.sleep(chance.uniform(0.5, 1.0))
            await victim.start()
            while not any(result.queue.broker_name == victim.name for result in list(acknowledged.values())[-200:]):
                assert monotonic() - killed < 30.0, "the broker is not used again"
                await asyncio.sleep(0.1)
            over = True
            await asyncio.gather(*workers)
            assert gathers_nothing(core_of(producer).batcher)
            assert producer.health().unanswered == 0
        read = [found.body.decode() for found in await read_all(two_brokers.namesrv, topic)]
        verdict = judge(attempted, list(acknowledged), read)
        retried = sum(result.attempts > 1 for result in acknowledged.values())
        print(f"{verdict}; {retried} retried, {len(failed)} failed")
        assert verdict.lost == ()
        assert verdict.strange == ()
        assert not failed

    run(main())
