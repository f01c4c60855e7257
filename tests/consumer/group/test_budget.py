"""Room for pulled messages."""

from __future__ import annotations

import asyncio

from rmq_async.consumer.fetch import Budget


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
