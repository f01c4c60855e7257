"""Pops of one source at a broker that is a function here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import machine
from rmq_async.consumer.held_queue import HeldQueue
from rmq_async.consumer.pop import sources as popping_module
from rmq_async.consumer.pop.acks import MOST_PENDING
from rmq_async.consumer.pop.pop_requests import Popped
from rmq_async.consumer.pop.sources import GROW_AFTER, MOST_BESIDE, Credits, Popping, Source
from rmq_async.consumer.subscription import Subscription
from rmq_async.errors import ConnectionLostError, RemoteProtocolError
from rmq_protocol.message import MessageExt, MessageQueue

QUEUE = MessageQueue("T", "b", -1)


async def handler(message: MessageExt) -> None:
    """Never called here."""


class Core:
    """Stands for PopCore. ``answer``: returns what a pop of so many messages brings, or raises."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        self.acks = SimpleNamespace(is_full=lambda broker: self.pending >= MOST_PENDING)
        self.pending = 0
        self.asked: list[int] = []
        self.body = b"x"
        self.tasks: list[asyncio.Task[Any]] = []
        self._answer = answer

    def knows_clock(self, broker: str) -> bool:
        return True

    def doubt_clock(self, broker: str) -> None:
        """Its clock is right."""

    def spawn(self, name: str, work: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(work, name=name))
        return self.tasks[-1]

    async def receive(self, topic: str, broker: str, subscription: Subscription, messages: int, poll: float) -> Popped:
        self.asked.append(messages)
        await asyncio.sleep(0)
        found, now = self._answer(messages), machine.monotonic()
        return Popped([MessageExt("T", self.body, queue=QUEUE)] * found, [None] * found, (), (), False, 1, 1, 60_000, now, now)


def too_large() -> ConnectionLostError:
    error = ConnectionLostError("lost", maybe_stored=True)
    error.__cause__ = RemoteProtocolError("frame length is above the limit")
    return error


def popping(core: Core, accept: Callable[[Source, Popped], None]) -> tuple[Popping, Source]:
    credits = Credits(4096, 1 << 26)
    credits.sources = 1
    subscription = Subscription("T", handler)
    source = Source(HeldQueue(QUEUE, QUEUE, subscription, 0), "T", subscription, credits, lambda: 512)
    return Popping(SimpleNamespace(), core, accept, lambda source: True), source  # type: ignore[arg-type]


async def end(task: asyncio.Task[None], source: Source, core: Core) -> None:
    source.ends = True
    source.wake.set()
    await asyncio.gather(task, *core.tasks)


async def test_pops_end_while_acks_are_not_answered() -> None:
    def accept(source: Source, popped: Popped) -> None:
        core.pending += len(popped.messages)  # handled at once, and never acknowledged

    core = Core(lambda messages: messages)
    pops, source = popping(core, accept)
    task = asyncio.create_task(pops.run(source))
    async with asyncio.timeout(60):
        while core.pending < MOST_PENDING or source.under_way:
            await asyncio.sleep(0)
    reached = core.pending
    for _ in range(1000):
        await asyncio.sleep(0)
    assert core.pending == reached < MOST_PENDING + 10 * 32
    await end(task, source, core)


async def test_bytes_held_pass_the_limit_by_what_pops_under_way_bring() -> None:
    """Small bodies let pops ask for many; then large ones come, which stay."""
    core = Core(lambda messages: messages)
    limit, most = 20_000, (MOST_BESIDE + 1) * 32 * 1000

    def accept(source: Source, popped: Popped) -> None:
        source.credits.take([len(message.body) for message in popped.messages])
        if len(core.asked) >= 200:
            core.body = b"x" * 1000
        if source.credits.size < limit // 2:
            for message in popped.messages:
                source.credits.give([len(message.body)])

    pops, source = popping(core, accept)
    source.credits.size_limit = limit
    task = asyncio.create_task(pops.run(source))
    async with asyncio.timeout(60):
        while source.credits.size < limit or source.under_way:
            await asyncio.sleep(0)
    reached, asked = source.credits.size, len(core.asked)
    assert limit < reached <= limit + most
    for _ in range(1000):
        await asyncio.sleep(0)
    assert (source.credits.size, len(core.asked)) == (reached, asked)
    await end(task, source, core)


async def test_pop_asks_for_half_after_an_answer_that_was_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping_module, "FIRST_PAUSE", 0.001)
    done = asyncio.Event()

    def answer(messages: int) -> int:
        if messages > 9 and not done.is_set():
            raise too_large()
        return messages

    def accept(source: Source, popped: Popped) -> None:
        if source.size == 9 and len(core.asked) > 100:
            done.set()

    core = Core(answer)
    pops, source = popping(core, accept)
    task = asyncio.create_task(pops.run(source))
    async with asyncio.timeout(60):
        await done.wait()
        while source.size < 32:
            await asyncio.sleep(0)
    await end(task, source, core)
    assert [size for size in core.asked if size not in (8, 9)][:2] == [32, 16]
    assert core.asked.count(10) >= GROW_AFTER  # the size that fits is found again, one by one
    assert done.is_set()


async def test_pops_under_way_together_halve_once() -> None:
    core = Core(lambda messages: messages)
    _, source = popping(core, lambda source, popped: None)
    for _ in range(8):
        source.shrink(32)
    assert source.size == 16
    source.shrink(1)
    assert source.size == 1
    for _ in range(GROW_AFTER):
        source.grow(0)  # says nothing about larger ones
        source.grow(1)
    assert source.size == 2


async def test_connection_that_was_lost_otherwise_leaves_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(popping_module, "FIRST_PAUSE", 0.001)
    failures = [ConnectionLostError("lost", maybe_stored=True)]

    def answer(messages: int) -> int:
        if failures:
            raise failures.pop()
        return messages

    core = Core(answer)
    pops, source = popping(core, lambda source, popped: None)
    task = asyncio.create_task(pops.run(source))
    async with asyncio.timeout(60):
        while len(core.asked) < 3:
            await asyncio.sleep(0)
    await end(task, source, core)
    assert source.size == 32


class HalfSilent(Core):
    """Stands for PopCore. Pops at "silent" are never answered."""

    async def receive(self, topic: str, broker: str, subscription: Subscription, messages: int, poll: float) -> Popped:
        if broker == "silent":
            await asyncio.Event().wait()
        return await super().receive(topic, broker, subscription, messages, poll)


@pytest.mark.virtual_time
async def test_silent_broker_with_messages_left_keeps_no_credits_from_another() -> None:
    core = HalfSilent(lambda messages: 0)
    pops, well = popping(core, lambda source, popped: None)
    queue = QUEUE._replace(broker_name="silent")
    silent = Source(HeldQueue(queue, queue, well.subscription, 0), "T", well.subscription, well.credits, lambda: 512)
    well.is_caught_up = silent.is_caught_up = False
    well.credits.sources, well.credits.limit = 2, silent.size
    waiting = asyncio.create_task(pops.run(silent))
    await asyncio.sleep(0)
    assert silent.free() == 0
    running = asyncio.create_task(pops.run(well))
    async with asyncio.timeout(1.0):
        await well.tried.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert well.credits.reserved == 0
    await end(running, well, core)
