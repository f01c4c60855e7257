"""The table of those who wait for one thing: order, deadlines of their own, leaving, and what a wait costs among many."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from time import monotonic

import pytest

from rmq_async._asyncio import WaitTable

from .support import Exact, spin

pytestmark = pytest.mark.wall_clock


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
    with Exact() as exact:
        began, ends = monotonic(), dict[int, float]()

        async def wait(number: int) -> None:
            assert await table.wait(began + times[number]) is None
            ends[number] = monotonic() - began

        await asyncio.gather(*[wait(number) for number in range(200)])
    for number, wanted in enumerate(times):
        exact.check(ends[number], wanted)
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
    began = monotonic()
    assert await table.wait(began - 1) is None
    assert monotonic() - began < 1.0


async def test_result_after_blocked_loop() -> None:
    """A result that the loop finds when it turns again comes before the deadline that has passed meanwhile."""
    table, loop = WaitTable[int](), asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        loop.add_reader(reader, table.resolve, 1)
        wait = asyncio.ensure_future(table.wait(monotonic() + 0.05))
        await spin()
        writer.send(b"x")
        time.sleep(0.3)
        assert await wait == 1
        loop.remove_reader(reader)


async def test_cost_of_wait_among_many() -> None:
    """CPU per wait that ends at its deadline, by cancellation or with a result: a pass over 20,000 others for each shows."""

    async def cost(number: int) -> float:
        table, best = WaitTable[int](), float("inf")
        for _ in range(3):
            before = time.process_time()
            now = monotonic()
            waits = [asyncio.ensure_future(table.wait(now + (0.0 if each % 3 == 0 else 60))) for each in range(number)]
            await spin(2)
            for each in range(1, number, 3):
                waits[each].cancel()
            await asyncio.wait([waits[each] for each in range(number) if each % 3 < 2])
            table.resolve(1)
            await asyncio.wait(waits)
            best = min(best, time.process_time() - before)
        return best / number

    gc.collect()
    gc.disable()
    try:
        few = await cost(500)
        assert await cost(20_000) < 12 * few
    finally:
        gc.enable()
