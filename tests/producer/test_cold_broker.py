"""Bursts to a broker that has just started and is slow: as fast as it can take them, and without one that it refuses for good."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Admin, Message, Producer, SendError
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC
from .support import messages, outcomes

pytestmark = pytest.mark.virtual_time

COLD, WARM = 1000.0, 20_000.0
"""Sends per second of a broker that has just started, and of the same some seconds later."""

Way = Callable[[Producer, list[Message]], Awaitable[list[Any]]]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedRocketMQ]:
    async with EmbeddedRocketMQ() as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=8)
        server.throttle(COLD, warm=WARM)
        yield server


async def awaited(sender: Producer, items: list[Message]) -> list[Any]:
    return await outcomes(*[sender.send(item) for item in items])


async def accepted(sender: Producer, items: list[Message]) -> list[Any]:
    return await outcomes(*[await sender.send_async(item) for item in items])


async def in_batches(sender: Producer, items: list[Message]) -> list[Any]:
    return await outcomes(*[sender.send_batch([item]) for item in items])


async def with_timeouts(sender: Producer, items: list[Message]) -> list[Any]:
    """The general path."""
    return await outcomes(*[sender.send(item, timeout=3.0) for item in items])


@pytest.mark.parametrize(
    ("way", "number"),
    [
        (awaited, 20_000),
        *(pytest.param(each, 20_000, marks=pytest.mark.deep) for each in (accepted, in_batches)),
        (with_timeouts, 6_000),
    ],
)
async def test_first_sends_to_a_cold_broker_are_stored(server: EmbeddedRocketMQ, way: Way, number: int) -> None:
    async with Producer("group", namesrv=server.namesrv) as sender:
        results = await way(sender, messages(number))
    assert Counter(type(result).__name__ for result in results if isinstance(result, BaseException)) == {}
    assert len(server.messages(TOPIC)) == number
    assert sum(result.attempts > 1 for result in results) < 200


async def test_first_sends_of_several_producers_share_the_window(server: EmbeddedRocketMQ) -> None:
    async with Producer("one", namesrv=server.namesrv) as one, Producer("two", namesrv=server.namesrv) as two:
        first, second = await asyncio.gather(awaited(one, messages(3000)), accepted(two, messages(3000)))
    assert [each for each in [*first, *second] if isinstance(each, BaseException)] == []
    assert len(server.messages(TOPIC)) == 6000


async def test_sends_that_turn_to_another_broker_are_stored_once() -> None:
    """With a second broker an attempt has one second: those that get their turn shortly before have time for the answer."""
    async with EmbeddedRocketMQ(brokers=2) as server:
        async with Admin(namesrv=server.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=8)
        server.throttle(100.0, warm=WARM)
        async with Producer("group", namesrv=server.namesrv) as sender:
            results = await awaited(sender, messages(4000))
        assert [each for each in results if isinstance(each, BaseException)] == []
        assert {result.attempts for result in results} == {1, 2}
        assert len(server.messages(TOPIC)) == 4000


async def test_oneway_messages_to_a_cold_broker_are_stored(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv) as sender:
        for item in messages(10_000):
            await sender.send_oneway(item)
        await sender.flush()
    assert len(server.messages(TOPIC)) == 10_000


async def test_broker_that_slows_down_gets_less(server: EmbeddedRocketMQ) -> None:
    """Its window has grown while it was fast."""
    server.throttle(WARM)
    async with Producer("group", namesrv=server.namesrv) as sender:
        assert not [each for each in await awaited(sender, messages(10_000)) if isinstance(each, BaseException)]
        server.throttle(2000.0)
        results = await awaited(sender, messages(4000))
    assert [each for each in results if isinstance(each, BaseException)] == []
    assert len(server.messages(TOPIC)) == 14_000


async def test_keyed_sends_to_a_cold_broker_keep_their_order(server: EmbeddedRocketMQ) -> None:
    async with Producer("group", namesrv=server.namesrv) as sender:
        items = messages(2000)
        results = await outcomes(*[sender.send(item, key="k") for item in items])
    assert [each for each in results if isinstance(each, BaseException)] == []
    assert [each.body for each in server.messages(TOPIC)] == [item.body for item in items]


async def test_more_than_a_broker_serves_in_time_ends_at_the_deadlines(server: EmbeddedRocketMQ) -> None:
    """What does not get its turn was not sent, and says so; the broker is asked for no more than it takes."""
    server.throttle(500.0)
    began = asyncio.get_running_loop().time()
    async with Producer("group", namesrv=server.namesrv) as sender:
        results = await awaited(sender, messages(5000))
        assert 2.9 < asyncio.get_running_loop().time() - began < 3.1
    failed = [each for each in results if isinstance(each, BaseException)]
    assert 1200 < len(results) - len(failed) <= 1500
    assert len(server.messages(TOPIC)) >= len(results) - len(failed)
    kinds = Counter(type(each.attempts[-1].error if isinstance(each, SendError) else each).__name__ for each in failed)
    assert set(kinds) == {"RequestTimeoutError"}
    assert sum(each.maybe_stored for each in failed) < 200
    assert "earlier sends are unanswered and the broker takes" in str(failed[-1])
