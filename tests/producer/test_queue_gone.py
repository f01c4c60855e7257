"""A topic that has fewer queues than its route says: an operator took some away, and clients learn of it by and by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rmq_async import Admin, Message, MessageQueue, Producer, SendError
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.errors import QueueNotExistError
from rmq_protocol.constants import RequestCode

from ..support.fakes import Answer, Cluster, Link, Sent, refuse, stored
from .support import Send, awaited, batched, deferred

pytestmark = pytest.mark.virtual_time

FULL, LEFT = 8, 2


class Shrunk:
    """Two brokers whose topic "T" has lost queues since ``producer`` looked its route up, which it will not do again by itself."""

    def __init__(self, server: EmbeddedRocketMQ, admin: Admin) -> None:
        self.server = server
        self.admin = admin

    async def producer(self, **options: Any) -> Producer:
        producer = Producer("group", namesrv=self.server.namesrv, route_poll_interval=600.0, **options)
        await self.admin.create_topic("T", queues=FULL)
        await producer.start()
        await asyncio.gather(*[producer.send(Message("T", b"before")) for _ in range(4 * FULL)])
        await self.admin.create_topic("T", queues=LEFT)
        self.server.clear()
        return producer

    @property
    def stored(self) -> list[int]:
        return [message.queue.queue_id for message in self.server.messages("T")]


@pytest.fixture
async def shrunk() -> AsyncIterator[Shrunk]:
    async with EmbeddedRocketMQ(brokers=2) as server, Admin(namesrv=server.namesrv, instance_name="operator") as admin:
        yield Shrunk(server, admin)


@pytest.mark.parametrize("send", [awaited, deferred, batched])
@pytest.mark.parametrize(
    "options", [{}, {"retries": 0, "async_retries": 0, "latency_fault": True}, {"batching": True}], ids=str
)
async def test_send_skips_queues_that_are_gone(shrunk: Shrunk, send: Send, options: dict[str, Any]) -> None:
    async with await shrunk.producer(**options) as producer:
        for _ in range(8):
            await asyncio.gather(*[send(producer) for _ in range(8)])
        asked = shrunk.server.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC]
        assert len(shrunk.stored) == 64
        assert set(shrunk.stored) <= {0, 1}
        await asyncio.sleep(0.05)
        results = await asyncio.gather(*[send(producer) for _ in range(16)])
    assert {result.attempts for result in results} == {1}, "the others know by now"
    assert shrunk.server.requests[RequestCode.GET_ROUTEINFO_BY_TOPIC] - asked <= 1


async def test_queue_gone_isolates_no_broker(shrunk: Shrunk) -> None:
    async with await shrunk.producer(latency_fault=True, retries=0) as producer:
        await asyncio.gather(*[awaited(producer) for _ in range(32)])
        results = [await awaited(producer) for _ in range(8)]
    assert {result.queue.broker_name for result in results} == {"broker-a", "broker-b"}


async def test_send_skips_gone_queues_while_no_name_server_answers(shrunk: Shrunk) -> None:
    async with await shrunk.producer(retries=0) as producer:
        shrunk.server.stall("namesrv")
        await asyncio.gather(*[awaited(producer) for _ in range(32)])
        assert {result.attempts for result in [await awaited(producer) for _ in range(16)]} == {1}
        shrunk.server.resume("namesrv")
    assert set(shrunk.stored) <= {0, 1}


def queues_below(count: int) -> Answer:
    """Stores what goes to the first ``count`` queues, and knows no others."""

    def answer(link: Link, sent: Sent) -> None:
        topic = f"TopicConfig [topicName=T, readQueueNums={count}, writeQueueNums={count}, perm=RW-]"
        gone = refuse(29, f"request queueId[{sent.queue.queue_id}] is illegal, {topic} Producer: 127.0.0.1:1")
        (stored if sent.queue.queue_id < count else gone)(link, sent)

    return answer


async def test_queue_given_back_is_used_again() -> None:
    """Though the route is the same all the time."""
    async with Cluster(1, queues=4) as cluster:
        cluster.answer(queues_below(1))
        async with Producer("group", namesrv=cluster.namesrv, route_poll_interval=0.2) as producer:
            assert {result.queue.queue_id for result in [await awaited(producer) for _ in range(8)]} == {0}
            cluster.answer(stored)
            await asyncio.sleep(0.25)
            assert {result.queue.queue_id for result in [await awaited(producer) for _ in range(4)]} == {0, 1, 2, 3}


async def test_topic_without_any_of_its_queues_is_an_error() -> None:
    async with Cluster(2, queues=2) as cluster:
        cluster.answer(queues_below(0))
        async with Producer("group", namesrv=cluster.namesrv) as producer:
            with pytest.raises(SendError) as caught:
                await awaited(producer)
            assert isinstance(caught.value.__cause__, QueueNotExistError)
            assert len(caught.value.attempts) == 4
            with pytest.raises(QueueNotExistError):
                await awaited(producer)


@pytest.mark.parametrize("options", [{}, {"retry_same_queue": True}, {"batching": True}], ids=str)
async def test_chosen_queue_that_is_gone_is_named(shrunk: Shrunk, options: dict[str, Any]) -> None:
    async with await shrunk.producer(**options) as producer:
        queue = MessageQueue("T", "broker-b", 5)
        for call in (
            producer.send(Message("T", b"x"), queue=queue),
            producer.send_batch([Message("T", b"x")] * 2, queue=queue),
        ):
            with pytest.raises(QueueNotExistError, match="topic T has no queue 5 on broker-b: it has 2 there") as caught:
                await call
        error = caught.value
        assert (error.code, error.queue_id, error.queues, error.broker, error.maybe_stored) == (29, 5, 2, "broker-b", False)
        with pytest.raises(QueueNotExistError):
            await (await producer.send_async(Message("T", b"x"), queue=queue))
    assert shrunk.stored == []


async def test_one_way_sends_skip_queues_that_are_gone(shrunk: Shrunk) -> None:
    async with await shrunk.producer(oneway_window=1) as producer:
        for _ in range(4 * FULL):
            await producer.send_oneway(Message("T", b"x"))
        await producer.flush()
        shrunk.server.clear()
        for _ in range(4 * FULL):
            await producer.send_oneway(Message("T", b"x"))
        await producer.flush()
    assert len(shrunk.stored) == 4 * FULL
