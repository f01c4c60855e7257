"""Calls of consumers and admins that fail, are cancelled or stopped leave nothing that only the garbage collector can free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from rmq_async import Admin
from rmq_async.consumer import PullConsumer
from rmq_async.errors import ClientStateError, CorruptMessageError, RocketMQError
from rmq_protocol.message import MessageQueue

from ..client.support import GARBAGE, until
from ..support.cycles import frozen as frozen
from ..support.cycles import no_cycle
from ..support.fakes import cut, refuse, silence
from .support import TOPIC, collect, record, scripted, under_way

CALLS = 4
QUEUE = MessageQueue(TOPIC, "broker-a", 0)

Call = Callable[[], Awaitable[Any]]


async def follow(consumer: PullConsumer) -> None:
    async with aclosing(consumer.read(TOPIC, end=None)) as reading:
        await collect(reading)


def calls(consumer: PullConsumer, admin: Admin) -> dict[str, Call]:
    return {
        "pull": lambda: consumer.pull(QUEUE, 0),
        "held pull": lambda: consumer.pull(QUEUE, 0, wait=0.02),
        "read": lambda: collect(consumer.read(TOPIC)),
        "follow": lambda: follow(consumer),
        "committed": lambda: consumer.committed(QUEUE),
        "commit": lambda: consumer.commit(QUEUE, 1),
        "max_offset": lambda: consumer.max_offset(QUEUE),
        "topic_stats": lambda: admin.topic_stats(TOPIC),
        "query_message": lambda: admin.query_message(TOPIC, "key"),
        "view_message": lambda: admin.view_message(TOPIC, "0" * 32),
    }


async def failing(call: Call, *, cancelled: bool = False) -> None:
    task = asyncio.ensure_future(call())
    if cancelled:
        await asyncio.sleep(0.002)
        task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        assert isinstance(task.exception(), RocketMQError)


@pytest.mark.virtual_time
@pytest.mark.parametrize("fault", [silence, refuse(1), cut, None], ids=["no answer", "refused", "cut", "cancelled"])
async def test_failed_calls_leave_no_cycle(frozen: None, fault: Any) -> None:
    async with scripted(request_timeout=0.1) as (broker, consumer), Admin(client=consumer.config) as admin:
        await consumer.queues(TOPIC)
        broker.serve = fault or silence
        for name, call in calls(consumer, admin).items():
            async with no_cycle(f"{CALLS} calls of {name}"):
                await asyncio.gather(*[failing(call, cancelled=fault is None) for _ in range(CALLS)])
                await asyncio.sleep(0.005)
        assert not under_way(consumer)
        del broker.serve


async def test_unusable_answers_of_a_name_server_leave_no_cycle(frozen: None) -> None:
    async with scripted() as (broker, consumer), Admin(client=consumer.config) as admin:
        broker.name_server.clusters = GARBAGE
        async with no_cycle("calls without a cluster"):
            await asyncio.gather(*[failing(admin.cluster_info) for _ in range(CALLS)])


async def test_readings_of_damaged_messages_leave_no_cycle(frozen: None) -> None:
    def damaged(_: object) -> tuple[int, int, bytes]:
        return 0, 1, record(0, b"sound").replace(b"sound", b"bound")

    async with scripted(damaged) as (_, consumer), no_cycle("readings"):
        for _ in range(CALLS):
            with pytest.raises(CorruptMessageError):
                await collect(consumer.read(TOPIC, start={QUEUE: 0}, end={QUEUE: 1}))


@pytest.mark.virtual_time
async def test_stopped_readings_leave_no_cycle(frozen: None) -> None:
    async with scripted() as (broker, consumer):
        await consumer.queues(TOPIC)
        broker.serve = silence
        async with no_cycle("readings"):
            readings = [asyncio.ensure_future(collect(consumer.read(TOPIC, start={QUEUE: 0}, end=None))) for _ in range(CALLS)]
            await until(lambda: len(under_way(consumer)) == 2 * CALLS)
            await consumer.stop()
            for error in await asyncio.gather(*readings, return_exceptions=True):
                assert isinstance(error, ClientStateError)
            del readings, error
        del broker.serve
