"""Two clusters at once in one process. Their brokers have the same names, so state kept by name would be mixed up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rmq_async import Admin, ConfigError, Message, Producer, PullConsumer, RequestTimeoutError
from rmq_async.embedded import EmbeddedRocketMQ

GROUP = "shop"
TOPIC = "Orders"


@pytest.fixture
async def clusters(nothing_left: None) -> AsyncIterator[tuple[EmbeddedRocketMQ, EmbeddedRocketMQ]]:
    """The topic has two queues on the one and five on the other, and cannot be created by sending."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(EmbeddedRocketMQ(auto_create_topics=False)) for _ in range(2)]
        for server, queues in zip(servers, (2, 5), strict=True):
            async with Admin(namesrv=server.namesrv) as admin:
                await admin.create_topic(TOPIC, queues=queues)
        yield servers[0], servers[1]


def bodies(server: EmbeddedRocketMQ) -> list[bytes]:
    return sorted(message.body for message in server.messages(TOPIC))


async def test_the_same_group_on_two_clusters_sends_to_each_its_own(
    clusters: tuple[EmbeddedRocketMQ, EmbeddedRocketMQ],
) -> None:
    first, second = clusters
    async with Producer(GROUP, namesrv=first.namesrv) as here, Producer(GROUP, namesrv=second.namesrv) as there:
        assert (len(await here.fetch_publish_queues(TOPIC)), len(await there.fetch_publish_queues(TOPIC))) == (2, 5)
        sends = [
            producer.send(Message(TOPIC, b"%s %02d" % (name, number)))
            for number in range(20)
            for name, producer in ((b"here", here), (b"there", there))
        ]
        results = await asyncio.gather(*sends)
        await here.send_batch([Message(TOPIC, b"here batch")])
        await there.send(Message(TOPIC, b"there key"), key="order-17")
    assert bodies(first) == sorted([b"here %02d" % number for number in range(20)] + [b"here batch"])
    assert bodies(second) == sorted([b"there %02d" % number for number in range(20)] + [b"there key"])
    assert len({result.msg_id for result in results}) == 40
    assert {result.queue.queue_id for result in results[0::2]} == set(range(2))
    assert {result.queue.queue_id for result in results[1::2]} == set(range(5))


async def test_the_same_group_twice_on_one_of_them_is_refused(clusters: tuple[EmbeddedRocketMQ, EmbeddedRocketMQ]) -> None:
    first, second = clusters
    async with Producer(GROUP, namesrv=first.namesrv), Producer(GROUP, namesrv=second.namesrv) as there:
        with pytest.raises(ConfigError, match=GROUP):
            await Producer(GROUP, namesrv=first.namesrv).start()
        await there.send(Message(TOPIC, b"x"))


@pytest.mark.virtual_time
async def test_a_silent_cluster_does_not_hold_up_the_other(clusters: tuple[EmbeddedRocketMQ, EmbeddedRocketMQ]) -> None:
    first, second = clusters
    async with Producer(GROUP, namesrv=first.namesrv) as here, Producer(GROUP, namesrv=second.namesrv) as there:
        for producer in (here, there):
            await producer.send(Message(TOPIC, b"before"))
        first.stall()
        first.stall("namesrv")
        silent = [asyncio.ensure_future(here.send(Message(TOPIC, b"silent"), timeout=1.0)) for _ in range(100)]
        for number in range(50):
            assert (await there.send(Message(TOPIC, b"while %d" % number))).attempts == 1
        assert not any(send.done() for send in silent)
        outcomes = await asyncio.gather(*silent, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {RequestTimeoutError}
        first.resume()
        first.resume("namesrv")
    assert len(bodies(second)) == 51


async def test_stopping_on_one_leaves_the_other(clusters: tuple[EmbeddedRocketMQ, EmbeddedRocketMQ]) -> None:
    first, second = clusters
    async with Admin(namesrv=second.namesrv) as admin, PullConsumer("audit", namesrv=second.namesrv) as consumer:
        async with Producer(GROUP, namesrv=second.namesrv) as there:
            async with Producer(GROUP, namesrv=first.namesrv) as here:
                await asyncio.gather(here.send(Message(TOPIC, b"here")), there.send(Message(TOPIC, b"there")))
                connected = second.statistics("broker-a").accepted
            async with asyncio.timeout(60):
                while first.connections:
                    await asyncio.sleep(0.001)
            await first.stop()
            await there.send(Message(TOPIC, b"and after"))
            assert len(await admin.producer_connections(GROUP)) == 1
        assert sorted([message.body async for message in consumer.read(TOPIC)]) == [b"and after", b"there"]
        assert second.statistics("broker-a").accepted == connected
        await first.start()
