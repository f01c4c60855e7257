"""The table of those who wait for one thing: order, deadlines of their own, leaving, and what a wait costs among many."""

from __future__ import annotations

import asyncio
import random
import time
from time import monotonic

import pytest

from rmq_async._asyncio import WaitTable

from ..support.calls import lines_counted
from .support import spin, takes

pytestmark = pytest.mark.virtual_time


async def test_results_in_order_of_joining() -> None:
    table, order = WaitTable[int](), list[int]()

    async def wait(number: int) -> None:
        assert await table.wait(monotonic() + 5) == 7
        order.append(number)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(500)]
    await spin()
    assert len(table) == 500
    table.resolve(7)
    await asyncio.gather(*tasks)
    assert order == [*range(500)]
    assert not len(table)


async def test_result_for_thousands_comes_in_portions() -> None:
    """All else on the loop has turns meanwhile, those who leave take none with them, and a deadline that passes is no one's."""
    table, done, turns = WaitTable[int](), list[int](), list[int]()

    async def wait(number: int) -> None:
        assert await table.wait(monotonic() + 0.2) == 7
        done.append(number)
        if number == 0:
            time.sleep(0.4)

    tasks = [asyncio.ensure_future(wait(number)) for number in range(3000)]
    await spin()
    table.resolve(7)
    while len(done) < 2000:
        await asyncio.sleep(0)
        turns.append(len(done))
    waiting = [number for number, task in enumerate(tasks) if not task.done()]
    for number in waiting[::2]:
        tasks[number].cancel()
    await asyncio.wait(tasks)
    assert len({*turns}) >= 5
    assert done == [number for number in range(3000) if number not in waiting[::2]]
    assert not len(table)


async def test_each_wait_ends_at_its_deadline() -> None:
    table, source = WaitTable[int](), random.Random(5)
    times = [source.uniform(0.0, 0.3) for _ in range(200)]

    async def wait(seconds: float) -> None:
        with takes(seconds):
            assert await table.wait(monotonic() + seconds) is None

    await asyncio.gather(*map(wait, times))
    assert not len(table)


async def test_cancelled_wait_leaves_others() -> None:
    table = WaitTable[int]()
    waits = [asyncio.ensure_future(table.wait(monotonic() + 5)) for _ in range(1000)]
    await spin()
    for wait in waits[:999]:
        wait.cancel()
    await asyncio.wait(waits[:999])
    assert len(table) == 1
    table.resolve(3)
    assert await waits[999] == 3


async def test_past_deadline_suspends_once() -> None:
    table = WaitTable[int]()
    with takes(0.0):
        assert await table.wait(monotonic() - 1) is None


async def test_cost_of_wait_among_many() -> None:
    """Lines that run per wait that ends at its deadline, by cancellation or with a result: a pass over 3,000 others would show."""

    async def cost(number: int) -> float:
        table = WaitTable[int]()
        with lines_counted() as lines:
            now = monotonic()
            waits = [asyncio.ensure_future(table.wait(now + (0.0 if each % 3 == 0 else 60))) for each in range(number)]
            await spin(2)
            for each in range(1, number, 3):
                waits[each].cancel()
            await asyncio.wait([waits[each] for each in range(number) if each % 3 < 2])
            table.resolve(1)
            await asyncio.wait(waits)
        return lines.count / number

    few = await cost(300)
    assert few > 1
    assert await cost(3000) < 1.5 * few
