"""Pops of one source at a broker that is a function here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from rmq_async import machine
from rmq_async.consumer.held_queue import HeldQueue
from rmq_async.consumer.pop.acks import MOST_PENDING
from rmq_async.consumer.pop.credits import Credits
from rmq_async.consumer.pop.popping import Popping, Source
from rmq_async.consumer.pop.requests import Popped
from rmq_async.consumer.subscription import Subscription
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
        return Popped([MessageExt("T", b"x", queue=QUEUE)] * found, [None] * found, (), 1, 1, 60_000, now, now)


def popping(core: Core, accept: Callable[[Source, Popped], None]) -> tuple[Popping, Source]:
    credits = Credits(4096, 1 << 26)
    credits.sources = 1
    subscription = Subscription("T", handler)
    source = Source(HeldQueue(QUEUE, QUEUE, subscription, 0), "T", subscription, credits, lambda: 512)
    return Popping(SimpleNamespace(), core, 32, accept, lambda source: True), source  # type: ignore[arg-type]


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
    async with asyncio.timeout(5):
        while core.pending < MOST_PENDING or source.under_way:
            await asyncio.sleep(0)
    reached = core.pending
    for _ in range(1000):
        await asyncio.sleep(0)
    assert core.pending == reached < MOST_PENDING + 10 * 32
    await end(task, source, core)
