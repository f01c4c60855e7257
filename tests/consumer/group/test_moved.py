"""Queues, locks and room that move while something waits for them."""

from __future__ import annotations

import asyncio
from typing import Any

from rmq_async import MessageExt, MessageQueue, Outcome
from rmq_async.consumer.commits import Commits
from rmq_async.consumer.decision import Decision
from rmq_async.consumer.delivery import Delivery
from rmq_async.consumer.fetch import Budget
from rmq_async.consumer.held_queue import HeldQueue, QueueState
from rmq_async.consumer.outcomes import Outcomes
from rmq_async.consumer.subscription import Subscription

QUEUE = MessageQueue("T", "a", 0)
NO_INSTANCE: Any = None


async def handler(message: MessageExt) -> None:
    """Never called here."""


async def test_settle_of_a_call_from_before_the_queue_was_moved() -> None:
    """Another message may have its offset now, in a topic that was made anew; it stays open."""
    subscription = Subscription("T", handler)
    held = HeldQueue(QUEUE, QUEUE, subscription, 3)
    held.progress.enter(3)
    delivery = Delivery(subscription, MessageExt("T", b"", queue=QUEUE, queue_offset=3))
    held.running[delivery] = 3
    held.restart(3)
    held.progress.enter(3)
    assert await Outcomes(NO_INSTANCE, "g").settle(held, delivery, Decision(Outcome.DONE)) is Outcome.DONE
    assert held.progress.watermark == 3


async def test_budget_first_in_line_cancelled_lets_the_next_one_in() -> None:
    budget = Budget(10, 1000)
    budget.take(8, 8)
    first = asyncio.create_task(budget.reserve(5, 5))
    second = asyncio.create_task(budget.reserve(2, 2))
    await asyncio.sleep(0)
    first.cancel()
    async with asyncio.timeout(1):
        await second
    assert budget.waiting == 0


async def test_commit_round_leaves_out_a_queue_given_up_meanwhile() -> None:
    """The next owner may have committed further."""
    queues = [HeldQueue(each, each, None, 1) for each in (QUEUE._replace(queue_id=number) for number in range(17))]
    asked: list[HeldQueue] = []

    class Recorded(Commits):
        async def commit(self, held: HeldQueue) -> None:
            asked.append(held)
            queues[-1].state = QueueState.RELEASED
            await asyncio.sleep(0)

    await Recorded(NO_INSTANCE, "g", lambda: queues, lambda queue: True).round()
    assert len(asked) == 16
