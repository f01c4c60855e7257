"""Lite topics that are no longer used are deleted, by the clock of the server."""

from __future__ import annotations

import pytest

from rmq_async.embedded import EmbeddedRocketMQ, ManualClock
from rmq_protocol.constants import RequestCode
from rmq_protocol.lite import LiteAction, lmq_name

from .inside import START, broker_of
from .lite_client import LiteClient, bodies

pytestmark = pytest.mark.virtual_time

MINUTE = 60


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


async def exists(lite: LiteClient, name: str = "a") -> bool:
    return await lite.offset(RequestCode.GET_MAX_OFFSET, lmq_name("T", name)) > 0


async def test_a_lite_topic_is_deleted_after_its_expiration(
    lite: LiteClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await lite.prepare(expiration=20)
    await lite.stored("a", "0")
    await clock.advance(1)  # so the check at 21 minutes is the first after 20 minutes
    await lite.stored("a", "1")
    await lite.subscribe("a")
    await lite.acked(*await lite.popped())
    await clock.advance(20 * MINUTE)
    assert await exists(lite)
    await clock.advance(MINUTE)
    assert not await exists(lite)
    assert server.progress("G") == {}
    assert len(server.messages("T")) == 2  # the parent has them still
    assert len(broker_of(server).state.topics.light) == 0


async def test_subscribers_of_a_deleted_lite_topic_are_not_told(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(expiration=16)
    await lite.stored("a", "0")
    for _ in range(38):
        await lite.control(LiteAction.SET, "a", "b")
        await clock.advance(30)
    assert not await exists(lite)
    assert (await lite.subscribers("a"), await lite.subscribers("b"), lite.pushed) == ({"one"}, {"one"}, [])
    await lite.stored("a", "1")  # it begins anew, at offset 0
    (popped,) = await lite.popped()
    assert (popped.body, popped.handle.msg_queue_offset) == (b"1", 0)


async def test_a_deletion_ends_the_subscriptions_until_the_client_repeats_them(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(expiration=16)
    await lite.stored("a", "0")
    await clock.advance(16 * MINUTE)
    await lite.subscribe("a", "b")
    await clock.advance(1 * MINUTE)
    assert (await lite.subscribers("a"), await lite.subscribers("b")) == (set(), {"one"})
    await lite.stored("a", "1")
    assert await lite.popped() == []
    await lite.control(LiteAction.SET, "a", "b")
    assert bodies(await lite.popped()) == [b"1"]


async def test_nothing_is_deleted_in_the_first_15_minutes(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(expiration=1)
    await lite.stored("a", "0")
    await clock.advance(15 * MINUTE - 1)
    assert await exists(lite)
    await clock.advance(1)
    assert not await exists(lite)
    await lite.stored("b", "0")
    await clock.advance(15 * MINUTE - 1)  # nor in the first 15 minutes of a lite topic
    assert await exists(lite, "b")
    await clock.advance(2 * MINUTE)
    assert not await exists(lite, "b")


async def test_the_least_time_can_be_lowered(clock: ManualClock) -> None:
    async with EmbeddedRocketMQ(clock=clock, min_lite_ttl=30) as server, LiteClient(server.brokers["broker-a"]) as lite:
        await lite.prepare(expiration=1)
        await lite.stored("a", "0")
        await clock.advance(40)  # the first check, then each 2 minutes
        await clock.advance(119)
        assert await exists(lite)
        await clock.advance(1)
        assert not await exists(lite)


async def test_a_message_keeps_a_lite_topic(lite: LiteClient, clock: ManualClock) -> None:
    await lite.prepare(expiration=15)
    for number in range(6):
        await lite.stored("a", str(number))
        await clock.advance(14 * MINUTE)
    assert await exists(lite)


@pytest.mark.parametrize("expiration", [None, -1, 0])
async def test_without_an_expiration_lite_topics_stay(lite: LiteClient, clock: ManualClock, expiration: int | None) -> None:
    await lite.prepare(expiration)
    await lite.stored("a", "0")
    await clock.advance(40 * 24 * 60 * MINUTE)
    assert await exists(lite)


async def test_lite_topics_of_a_topic_of_another_type_stay(lite: LiteClient, clock: ManualClock) -> None:
    await lite.create_topic("T", 1)
    await lite.stored("a", "0")
    await clock.advance(3600)
    assert await exists(lite)


async def test_empty_queues_are_deleted_after_some_rounds(
    lite: LiteClient, clock: ManualClock, server: EmbeddedRocketMQ
) -> None:
    await lite.prepare(expiration=60)
    await lite.stored("a", "0")
    server.truncate("broker-a", 1)
    light = broker_of(server).state.topics.light
    await clock.advance(15 * MINUTE + 4 * 120)
    assert len(light) == 1
    await clock.advance(120)
    assert len(light) == 0
