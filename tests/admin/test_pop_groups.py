"""Retries of groups that pop, which brokers keep in a topic for each group and topic."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmq_async import Admin, Consumer, Message, MessageExt, Producer, RetryLater
from rmq_async.embedded import EmbeddedRocketMQ, ManualClock

from ..consumer.group.support import until


@pytest.fixture
async def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=[False, True], ids=["v1", "v2"])
async def server(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ(brokers=2, clock=clock, pop_retry_v2=request.param) as started:
        yield started


@pytest.fixture
async def admin(server: EmbeddedRocketMQ) -> AsyncIterator[Admin]:
    async with Admin(namesrv=server.namesrv) as started:
        await started.create_topic("OrderTopic", queues=1)
        yield started


async def fail(server: EmbeddedRocketMQ, clock: ManualClock, group: str) -> None:
    """Three messages on each broker that the group pops once, and that are due again."""
    handled = []
    consumer = Consumer(group, namesrv=server.namesrv, mode="pop", start_from="earliest")

    @consumer.handler("OrderTopic")
    async def handle(message: MessageExt) -> None:
        handled.append(message.body)
        raise RetryLater(30.0)

    async with Producer("orders", namesrv=server.namesrv) as producer:
        for queue in await producer.fetch_publish_queues("OrderTopic"):
            for _ in range(3):
                await producer.send(Message("OrderTopic", b"bad"), queue=queue)
    async with consumer:
        await until(lambda: len(handled) >= 6)
        await consumer.wait_idle()
    await clock.advance(100)
    assert len(server.retries(group)) == 6


@pytest.mark.virtual_time
async def test_group_lag_counts_retries_of_pops_apart(server: EmbeddedRocketMQ, clock: ManualClock, admin: Admin) -> None:
    await fail(server, clock, "billing")
    lag = await admin.group_lag("billing", "OrderTopic")
    assert (lag.messages, lag.retries) == (0, 6)

    consumer = Consumer("billing", namesrv=server.namesrv, mode="pop")
    handled = []

    @consumer.handler("OrderTopic")
    async def handle(message: MessageExt) -> None:
        handled.append(message.body)

    async with consumer:
        await until(lambda: len(handled) == 6)
        await consumer.wait_idle()
        during = await admin.group_lag("billing")
    assert [each.committed for each in during.retry_queues.values()] == [3, 3]
    lag = await admin.group_lag("billing")
    assert {queue.topic for queue in lag.queues} == {"OrderTopic"}
    assert lag == during


@pytest.mark.virtual_time
async def test_delete_group_deletes_retries_of_pops(server: EmbeddedRocketMQ, clock: ManualClock, admin: Admin) -> None:
    await fail(server, clock, "billing")
    await admin.delete_group("billing")
    assert [name for name in await admin.topics() if "billing" in name] == []
    assert server.retries("billing") == []


async def test_delete_group_leaves_topics_that_may_be_of_other_groups(server: EmbeddedRocketMQ, admin: Admin) -> None:
    await admin.create_group("billing")
    await admin.create_group("billing_OrderTopic")  # its retry topic has the name of those that pops of "billing" have
    await admin.create_topic("eu_OrderTopic", queues=1)
    await admin.create_group("billing_eu")
    for group, topic in (("billing", "OrderTopic"), ("billing", "eu_OrderTopic"), ("billing_eu", "OrderTopic")):
        await admin.reset_offsets(group, topic, "earliest")
    names = ["%RETRY%billing_OrderTopic", "%RETRY%billing_eu_OrderTopic"]
    async with Producer("orders", namesrv=server.namesrv) as producer:
        for name in names:
            await producer.send(Message(name, b"theirs"))
    await admin.delete_group("billing")
    assert [len(server.messages(name)) for name in names] == [1, 1]
