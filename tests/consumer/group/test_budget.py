"""Room for pulled messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmq_async import Message, MessageExt, MessageQueue, Producer
from rmq_async.consumer.queues.pulls import Budget
from rmq_async.testing.simulation import Simulation

from .support import Seen, create, member, send, until

pytestmark = pytest.mark.virtual_time


async def test_budget_full_waits_in_order() -> None:
    budget, calls = Budget(10, 1000), []
    budget.full = lambda: calls.append("full")
    budget.take(8, 800)
    first = asyncio.create_task(budget.reserve(4, 10))
    second = asyncio.create_task(budget.reserve(1, 10))
    await asyncio.sleep(0)
    assert (budget.waiting, calls) == (2, ["full", "full"])
    budget.give(1, 0)
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    budget.give(1, 0)
    await first
    assert not second.done()
    budget.release(4, 10)
    await second
    assert budget.waiting == 0


async def test_budget_pull_larger_than_all_of_it() -> None:
    budget = Budget(10, 1000)
    await budget.reserve(32, 4_000_000)
    budget.release(32, 4_000_000)
    budget.take(1, 1)
    late = asyncio.create_task(budget.reserve(32, 4_000_000))
    await asyncio.sleep(0)
    assert not late.done()
    budget.give(1, 1)
    await late


async def test_budget_cancelled_wait_returns_its_room() -> None:
    budget = Budget(2, 100)
    budget.take(2, 0)
    waiting = asyncio.create_task(budget.reserve(2, 0))
    other = asyncio.create_task(budget.reserve(2, 0))
    await asyncio.sleep(0)
    budget.give(2, 0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await other
    assert budget.waiting == 0


@pytest.mark.parametrize(
    "limits", [{"buffered_limit": 20}, {"buffered_bytes_limit": 256 * 1024}, {"buffered_bytes_limit": 1024}]
)
def test_hung_handler_leaves_room_for_pulls_of_other_queues(limits: dict[str, int]) -> None:
    """A pull that is larger than all of the budget is made smaller; else it would wait until nothing is buffered at all."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv)
        hung: list[bytes] = []

        async def handler(message: MessageExt) -> None:
            if not hung:
                hung.append(message.body)
                await asyncio.sleep(10_000)
            await seen(message)

        seen = Seen()
        size = 20 * 1024 if limits.get("buffered_bytes_limit") != 1024 else 100
        await send(s.namesrv, *[b"%d " % number + b"x" * size for number in range(400)])
        options: dict[str, Any] = {"start_from": "earliest", "max_span": 100, **limits}
        consumer = member("g", s.namesrv, "one", handler, **options)
        await consumer.start()
        await until(lambda: len(seen.bodies) >= 300, 60.0)
        assert consumer.stats().buffered_bytes <= max(limits.get("buffered_bytes_limit", 0), 20 * (size + 4))
        await consumer.stop(timeout=0)

    Simulation(12, brokers=1, faults=None).run(main)


def test_messages_dropped_for_lack_of_room_are_pulled_again_at_once() -> None:
    """Also where the broker holds the last pull of their queue, for up to 20 s: nothing wakes it but a new message."""

    async def main(s: Simulation) -> None:
        await create(s.namesrv, queues=2)

        async def to(queue_id: int) -> None:
            queue = MessageQueue("T", "broker-a", queue_id)
            async with Producer("senders", namesrv=s.namesrv) as producer:
                await producer.send_batch([Message("T", b"%d %d" % (queue_id, number)) for number in range(64)], queue=queue)

        begun = asyncio.Event()
        seen = Seen(lambda _: begun.wait())
        await to(0)
        options: dict[str, Any] = {"start_from": "earliest", "buffered_limit": 100, "concurrency": 1}
        async with member("g", s.namesrv, "one", seen, **options) as consumer:
            await until(lambda: consumer.stats().buffered == 64)
            await to(1)
            await asyncio.sleep(1.0)  # what is above the share of the first queue has been dropped
            begun.set()
            await until(lambda: len(seen.bodies) == 128, 3.0)
            assert not seen.twice

    Simulation(12, brokers=1, faults=None).run(main)
