"""The age of the oldest message, where the broker's clock is another than the member's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmq_async import Admin, Consumer, MessageExt
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.embedded.clock import SystemClock
from rmq_protocol.constants import RequestCode

from .support import create, reader, send, until

pytestmark = pytest.mark.virtual_time

ASKED = RequestCode.GET_BROKER_RUNTIME_INFO
HOUR = 3600


class Skewed:
    """A clock that is ahead by a number of seconds."""

    def __init__(self, seconds: int) -> None:
        self._ahead_ms = seconds * 1000
        self._clock = SystemClock()

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms

    def call_at(self, when_ms: int, call: Callable[[], object]) -> Any:
        return self._clock.call_at(when_ms - self._ahead_ms, call)


def oldest_age(consumer: Consumer) -> float:
    age = consumer.lag().oldest_age
    assert age is not None
    return age


@pytest.mark.parametrize("seconds", [HOUR, -HOUR, 0])
@pytest.mark.parametrize("options", [{}, {"mode": "pop"}, {"broadcast": True}, {"topics": "T"}], ids=str)
async def test_oldest_age_is_by_the_clock_of_the_broker(options: dict[str, Any], seconds: int) -> None:
    async with EmbeddedRocketMQ(clock=Skewed(seconds)) as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, b"1", b"2", b"3")
        await asyncio.sleep(20.0)
        consumer = Consumer("g", namesrv=server.namesrv, start_from="earliest", **options)
        if "topics" not in options:

            @consumer.handler("T")
            async def waits(message: MessageExt) -> None:
                await asyncio.Event().wait()

        async with consumer:
            await until(lambda: consumer.lag().oldest_age is not None)
            await asyncio.sleep(10.0)
            assert oldest_age(consumer) == pytest.approx(30.0, abs=1.0)
            await consumer.stop(0.0)


async def test_oldest_age_is_by_the_own_clock_where_the_broker_does_not_say_its_time() -> None:
    """As to a user without that right; the broker is not asked again and again."""
    async with EmbeddedRocketMQ(clock=Skewed(-100)) as server:
        await create(server.namesrv, queues=1)
        await send(server.namesrv, *[b"%d" % number for number in range(100)])
        server.fail_next(100, 16, request=ASKED)
        async with reader(server.namesrv, start_from="earliest", pull_size=1) as consumer:
            await consumer.receive(1)
            await asyncio.sleep(30.0)
            assert oldest_age(consumer) == pytest.approx(130.0, abs=1.0)
            assert server.requests[ASKED] == 1


async def test_broker_is_asked_for_its_time_only_for_messages_that_seem_old() -> None:
    async with EmbeddedRocketMQ() as server:
        await create(server.namesrv)
        async with reader(server.namesrv, start_from="earliest") as consumer:
            for _ in range(20):
                await send(server.namesrv, b"x")
                consumer.done(*await consumer.receive(1))
                await asyncio.sleep(5.0)
            assert not server.requests[ASKED]


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_overview_has_the_age_of_the_oldest_message_by_the_clock_of_its_broker(seconds: int) -> None:
    async with EmbeddedRocketMQ(clock=Skewed(seconds), brokers=2) as server:
        await create(server.namesrv, queues=1)
        async with reader(server.namesrv, start_from="earliest") as consumer:
            await consumer.commit()
        await send(server.namesrv, b"1", b"2")
        await asyncio.sleep(20.0)
        async with Admin(namesrv=server.namesrv) as admin:
            age = (await admin.overview()).groups["g"].oldest_age
        assert age == pytest.approx(20.0, abs=1.0)
