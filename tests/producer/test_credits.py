"""Credits: numbers, bytes, turns, and an account that always returns to zero."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_async import BackpressureError, ClientStateError
from rmq_async.producer.admission import credits as module
from rmq_async.producer.admission.credits import Credits, Epoch

from .support import GRACE, outcomes, seeded, spin, timed

pytestmark = pytest.mark.virtual_time


def taken(credits: Credits) -> tuple[int, int, int]:
    return credits.taken, credits.taken_bytes, credits.waiting


async def take(credits: Credits, number: int = 1, size: int = 1, timeout: float = 5.0) -> Epoch:
    return await credits.take(number, size, asyncio.get_running_loop().time() + timeout)


async def test_what_is_free_is_given_at_once() -> None:
    credits = Credits("sends", 3, 100)
    epochs = [credits.try_take(1, 10) for _ in range(3)]
    assert all(epochs)
    assert credits.try_take(1, 10) is None
    assert taken(credits) == (3, 30, 0)
    credits.give_back(epochs[0] or Epoch(), 1, 10)
    assert credits.try_take(1, 80) is not None
    assert taken(credits) == (3, 100, 0)
    for size in (10, 10, 80):
        credits.give_back(credits.epoch, 1, size)
    assert taken(credits) == (0, 0, 0)


async def test_the_first_to_come_is_served_first() -> None:
    """Also when a later one would fit: no call passes another."""
    credits = Credits("sends", 10, 100)
    first = await take(credits, 1, 95)
    served: list[int] = []

    async def wait(number: int, size: int) -> None:
        epoch = await take(credits, 1, size)
        served.append(number)
        credits.give_back(epoch, 1, size)

    waits = [asyncio.ensure_future(wait(number, size)) for number, size in enumerate([50, 1, 60, 1, 1])]
    await spin(3)
    assert credits.try_take(1, 1) is None
    assert served == []
    credits.give_back(first, 1, 95)
    await asyncio.gather(*waits)
    assert served == [0, 1, 2, 3, 4]
    assert taken(credits) == (0, 0, 0)


async def test_more_than_a_whole_limit_passes_alone() -> None:
    credits = Credits("sends", 4, 100)
    small = await take(credits)
    waits = [asyncio.ensure_future(take(credits, *wanted)) for wanted in [(1, 1000), (9, 9), (1, 1)]]
    await spin(3)
    assert [wait.done() for wait in waits] == [False] * 3
    credits.give_back(small, 1, 1)
    await spin(5)
    assert [wait.done() for wait in waits] == [True, False, False]
    credits.give_back(waits[0].result(), 1, 1000)
    await spin(5)
    assert [wait.done() for wait in waits] == [True, True, False]
    credits.give_back(waits[1].result(), 9, 9)
    credits.give_back(await waits[2], 1, 1)
    assert taken(credits) == (0, 0, 0)


async def test_the_refusal_names_what_is_taken() -> None:
    credits = Credits("sends", 1, 100)
    epoch = await take(credits, 1, 60)
    with timed(0.05, 0.05), pytest.raises(BackpressureError, match=r"1 of 1 messages, 60 of 100 bytes"):
        await take(credits, timeout=0.05)
    assert "1 of 1" in repr(credits)
    credits.give_back(epoch, 1, 60)
    assert taken(credits) == (0, 0, 0)


async def test_a_caller_that_gives_up_is_stepped_over() -> None:
    credits = Credits("sends", 1, 100)
    epoch = await take(credits)
    waits = [asyncio.ensure_future(take(credits, timeout=timeout)) for timeout in (5, 0.02, 5, 0.02, 5)]
    await spin()
    waits[2].cancel()
    await asyncio.sleep(0.04 + GRACE)
    for last in (waits[0], waits[4]):
        credits.give_back(epoch, 1, 1)
        epoch = await last
    credits.give_back(epoch, 1, 1)
    assert [type(error) for error in await outcomes(*waits)] == [
        Epoch, BackpressureError, asyncio.CancelledError, BackpressureError, Epoch,
    ]  # fmt: skip
    assert taken(credits) == (0, 0, 0)


async def test_the_first_of_the_queue_gives_up_and_lets_the_next_one_by() -> None:
    credits = Credits("sends", 10, 100)
    epoch = await take(credits, 1, 50)
    big = asyncio.ensure_future(take(credits, 1, 90, timeout=0.02))
    small = asyncio.ensure_future(take(credits, 1, 10))
    with pytest.raises(BackpressureError):
        await big
    credits.give_back(await small, 1, 10)
    credits.give_back(epoch, 1, 50)
    assert taken(credits) == (0, 0, 0)


async def test_a_credit_that_arrives_with_the_cancellation_goes_back() -> None:
    credits = Credits("sends", 1, 100)
    epoch = await take(credits)
    wait = asyncio.ensure_future(take(credits))
    await spin(2)
    credits.give_back(epoch, 1, 1)
    wait.cancel()
    await outcomes(wait)
    assert taken(credits) == (0, 0, 0)
    assert credits.try_take(1, 1) is not None
    credits.give_back(credits.epoch, 1, 1)


async def test_those_who_gave_up_behind_a_waiting_one_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVEN_UP_KEPT", 4, raising=False)
    credits = Credits("sends", 1, 100)
    epoch = await take(credits)
    first = asyncio.ensure_future(take(credits))
    await spin()
    for _ in range(5):
        hasty = [asyncio.ensure_future(take(credits)) for _ in range(20)]
        await spin(2)
        assert credits.waiting == 21
        for wait in hasty:
            wait.cancel()
        await outcomes(*hasty)
        assert credits.waiting == 1
        assert "1 wait" in repr(credits)
    assert len(credits._waiters) <= 2 * (4 + 1)  # noqa: SLF001
    credits.give_back(epoch, 1, 1)
    credits.give_back(await first, 1, 1)
    assert taken(credits) == (0, 0, 0)


async def test_refusing_ends_the_wait_and_serves_none_after() -> None:
    credits = Credits("sends", 1, 100)
    epoch = await take(credits)
    waits = [asyncio.ensure_future(take(credits)) for _ in range(3)]
    await spin(2)
    waits[1].cancel()
    credits.refuse(lambda: ClientStateError("over"))
    results = await outcomes(*waits)
    assert [type(error) for error in results] == [ClientStateError, asyncio.CancelledError, ClientStateError]
    assert results[0] is not results[2]
    credits.give_back(epoch, 1, 1)
    assert credits.try_take(1, 1) is None
    with pytest.raises(ClientStateError):
        await take(credits)
    assert taken(credits) == (0, 0, 0)


async def test_waiting_for_what_was_taken_so_far() -> None:
    credits = Credits("sends", 100, 100)
    loop = asyncio.get_running_loop()
    old = [await take(credits) for _ in range(2)]
    waiting = asyncio.ensure_future(credits.wait_idle(loop.time() + 5))
    await spin(2)
    young = [await take(credits) for _ in range(2)]
    second = asyncio.ensure_future(credits.wait_idle(loop.time() + 5))
    await spin(2)
    credits.give_back(old[0], 1, 1)
    await spin(4)
    assert not waiting.done()
    credits.give_back(old[1], 1, 1)
    assert await waiting
    assert not second.done()
    assert not await credits.wait_idle(loop.time() + 0.02)
    for epoch in young:
        credits.give_back(epoch, 1, 1)
    assert await second
    assert await credits.wait_idle(loop.time())
    assert taken(credits) == (0, 0, 0)


class Model:
    """Runs random steps on Credits and on a plain account beside it."""

    def __init__(self, limit: int, byte_limit: int) -> None:
        self.credits = Credits("sends", limit, byte_limit)
        self.limit, self.byte_limit = limit, byte_limit
        self.held: list[tuple[Epoch, int, int]] = []
        self.waits: list[tuple[asyncio.Task[Epoch], int, int]] = []
        self.flushes: list[asyncio.Task[bool]] = []

    async def step(self, kind: str, number: int, size: int) -> None:
        if kind == "take":
            self.waits.append((asyncio.ensure_future(take(self.credits, number, size)), number, size))
        elif kind == "try":
            epoch = self.credits.try_take(number, size)
            if epoch is not None:
                self.held.append((epoch, number, size))
        elif kind == "late":
            self.waits.append((asyncio.ensure_future(take(self.credits, number, size, 0.0)), number, size))
        elif kind == "give" and self.held:
            self.credits.give_back(*self.held.pop(number % len(self.held)))
        elif kind == "cancel" and self.waits:
            self.waits[number % len(self.waits)][0].cancel()
        elif kind == "flush":
            self.flushes.append(asyncio.ensure_future(self.credits.wait_idle(asyncio.get_running_loop().time() + 5)))
        elif kind == "spin":
            await spin(number)
            self.collect()
            self.check()

    def collect(self) -> None:
        for wait in [wait for wait in self.waits if wait[0].done()]:
            self.waits.remove(wait)
            task, number, size = wait
            if not task.cancelled() and task.exception() is None:
                self.held.append((task.result(), number, size))

    def check(self) -> None:
        assert self.credits.taken >= sum(number for _, number, _ in self.held)
        numbers, sizes = [number for _, number, _ in self.held], [size for *_, size in self.held]
        assert sum(numbers) <= self.limit or len(numbers) == 1 or max(numbers) > self.limit
        assert sum(sizes) <= self.byte_limit or len(sizes) == 1 or max(sizes) > self.byte_limit

    async def finish(self) -> None:
        while self.waits or self.held:
            await spin(4)
            self.collect()
            while self.held:
                self.credits.give_back(*self.held.pop())
            if self.waits and all(task.cancelling() for task, *_ in self.waits):
                await spin()
        assert all(await asyncio.gather(*self.flushes))
        assert taken(self.credits) == (0, 0, 0)
        assert self.credits.try_take(self.limit, self.byte_limit) is not None
        self.credits.give_back(self.credits.epoch, self.limit, self.byte_limit)


KINDS = ["take", "try", "late", "give", "cancel", "flush", "spin"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 6), st.integers(1, 40)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(limit=st.integers(1, 5), byte_limit=st.integers(1, 30), steps=STEPS)
def test_the_account_always_returns_to_zero(limit: int, byte_limit: int, steps: list[tuple[str, int, int]]) -> None:
    async def run() -> None:
        model = Model(limit, byte_limit)
        for step in steps:
            await model.step(*step)
        await model.finish()

    asyncio.run(run())


async def test_ten_thousand_callers_with_random_fates() -> None:
    source = seeded()
    credits = Credits("sends", 50, 5000)

    async def call() -> None:
        size = source.randrange(1, 400)
        epoch = await take(credits, 1, size, source.choice([0.001, 5.0]))
        try:
            await spin(source.randrange(3))
        finally:
            credits.give_back(epoch, 1, size)

    calls: list[Any] = [asyncio.ensure_future(call()) for _ in range(10_000)]
    await spin(2)
    for victim in random.Random(source.random()).sample(calls, 2000):
        victim.cancel()
    results = await outcomes(*calls)
    kinds = {type(result) for result in results}
    assert kinds <= {type(None), BackpressureError, asyncio.CancelledError}
    assert taken(credits) == (0, 0, 0)


async def test_after_any_join_leave_or_release_the_first_who_fits_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compared, step by step, with a plain list of those who wait."""
    monkeypatch.setattr(module, "GIVEN_UP_KEPT", 2, raising=False)
    source = seeded()
    limit, byte_limit = 5, 40
    credits = Credits("sends", limit, byte_limit)
    tasks: dict[int, asyncio.Task[Epoch]] = {}
    sizes: dict[int, int] = {}
    waiting: list[int] = []
    held: list[int] = []

    def serve() -> None:
        while waiting and len(held) < limit:
            used = sum(sizes[each] for each in held)
            if used and used + sizes[waiting[0]] > byte_limit:
                break
            held.append(waiting.pop(0))

    for number in range(600):
        kind = source.choice(["join", "join", "leave", "give", "storm"])
        if kind == "join":
            sizes[number] = source.randrange(1, 60)
            tasks[number] = asyncio.ensure_future(take(credits, 1, sizes[number], 60.0))
            waiting.append(number)
        elif kind == "give" and held:
            given = held.pop(source.randrange(len(held)))
            credits.give_back(tasks.pop(given).result(), 1, sizes[given])
        elif waiting:
            leaving = source.sample(waiting, 1 if kind == "leave" else len(waiting) // 2)
            for each in leaving:
                tasks.pop(each).cancel()
                waiting.remove(each)
        serve()
        await spin(5)
        assert {each for each, task in tasks.items() if task.done()} == set(held)
        assert taken(credits) == (len(held), sum(sizes[each] for each in held), len(waiting))
        assert len(credits._waiters) <= 2 * (2 + 1 + len(waiting))  # noqa: SLF001
    for task in tasks.values():
        task.cancel()
    await outcomes(*tasks.values())
    for each in held:
        credits.give_back(tasks[each].result(), 1, sizes[each])
    assert taken(credits) == (0, 0, 0)
