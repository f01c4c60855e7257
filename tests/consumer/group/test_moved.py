"""Queues, locks and room that move while something waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async import MessageExt, MessageQueue, Outcome, machine
from rmq_async.consumer.delivery import Call
from rmq_async.consumer.group import handover
from rmq_async.consumer.group.commits import Commits, Doubts
from rmq_async.consumer.group.handover import Takeover
from rmq_async.consumer.handling.ack import SettledLog
from rmq_async.consumer.handling.decision import Decision
from rmq_async.consumer.handling.give_backs import GiveBack, GiveBacks
from rmq_async.consumer.handling.redelivery import Outcomes
from rmq_async.consumer.held_queue import HeldQueue, QueueState, Waiting
from rmq_async.consumer.queues.pulls import Budget
from rmq_async.consumer.subscription import Subscription
from rmq_async.errors import BrokerNotFoundError, RocketMQError

pytestmark = pytest.mark.virtual_time

QUEUE = MessageQueue("T", "a", 0)
NO_INSTANCE: Any = None


async def handler(message: MessageExt) -> None:
    """Never called here."""


async def test_settle_of_a_call_from_before_the_queue_was_moved() -> None:
    """Another message may have its offset now, in a topic that was made anew; it stays open."""
    subscription = Subscription("T", handler)
    held = HeldQueue(QUEUE, QUEUE, subscription, 3)
    held.progress.enter(3)
    item = Waiting(held, MessageExt("T", b"", queue=QUEUE, queue_offset=3))
    held.running[item] = Call(subscription, (item.message,), 1)
    held.restart(3)
    held.progress.enter(3)
    outcomes, reported = Outcomes(NO_INSTANCE, "g"), list[Outcome]()
    outcomes.give_backs = GiveBacks(outcomes, NO_INSTANCE)
    outcomes.give_backs.end_now(
        GiveBack(held, "T", item.message, Decision(Outcome.RETRIED), "", reported.append, item), Outcome.RETRIED
    )
    assert held.progress.watermark == 3
    assert reported == [Outcome.RETRIED]


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
        async def commit(self, held: HeldQueue, *, wait: bool = False) -> None:
            asked.append(held)
            queues[-1].state = QueueState.RELEASED
            await asyncio.sleep(0)

    instance: Any = SimpleNamespace(routes=SimpleNamespace(broker_of=lambda queue: queue.broker_name))
    await Recorded(instance, "g", lambda: queues, lambda queue: True, Doubts()).round()
    assert len(asked) == 16


async def test_takeover_lock_lost_before_the_offset_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is asked for again; a queue that is read without one would never be committed."""
    asked = asyncio.Queue[None]()

    class Locks:
        async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
            asked.put_nowait(None)
            return frozenset(queues)

    async def unknown(*_: object) -> tuple[int, int | None]:
        raise BrokerNotFoundError("down")

    monkeypatch.setattr(handover, "start_offset", unknown)
    locks: Any = Locks()
    takeover = Takeover(NO_INSTANCE, "g", locks, 10.0, lambda queue, offset, committed: None)
    takeover.want([QUEUE])
    running = asyncio.create_task(takeover.run())
    async with asyncio.timeout(2):
        await asked.get()
        while not takeover.errors:
            await asyncio.sleep(0)
        takeover.lose(QUEUE)
        await asked.get()
    running.cancel()
    await asyncio.wait([running])


async def test_takeover_lock_got_again_waits_for_a_former_owner_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member that had the lock in between may be about to commit: else all messages of the queue are repeated."""
    granted, opened = [True], list[float]()

    class Locks:
        async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
            return frozenset(queues) if granted[0] else frozenset()

        def errors_of(self, queues: Iterable[MessageQueue]) -> dict[str, RocketMQError]:
            return {}

        def is_ordered(self, queue: MessageQueue) -> bool:
            return True  # else it is read without its lock some time

    async def none(_: MessageQueue) -> tuple[int, int | None]:
        return 0, None

    async def end(*_: object, **__: object) -> int:
        return 100

    monkeypatch.setattr(handover, "max_offset", end)
    locks: Any = Locks()
    instance: Any = SimpleNamespace(routes=SimpleNamespace(broker_of=lambda queue: queue.broker_name))
    takeover = Takeover(instance, "g", locks, 10.0, lambda *_: opened.append(machine.monotonic()))
    takeover.start, takeover.is_shared = none, lambda: True
    takeover.want([QUEUE])
    running = asyncio.create_task(takeover.run())
    await asyncio.sleep(2)
    granted[0] = False
    takeover.lose(QUEUE)
    await asyncio.sleep(30)
    assert not opened
    granted[0], again = True, machine.monotonic()
    await asyncio.sleep(20)
    assert opened[0] - again >= handover.OFFSET_PATIENCE
    running.cancel()
    await asyncio.wait([running])


async def test_settled_error_keeps_no_frames() -> None:
    """Each frame keeps what its handler held."""
    log = SettledLog()
    try:
        raise ValueError("x")
    except ValueError as error:
        log.add(MessageExt("T", b""), Outcome.RETRIED, error, 0.1)
    (only,) = await log.wait(1, 1.0)
    assert only.error is not None
    assert only.error.__traceback__ is None


async def test_settled_messages_are_kept_up_to_a_limit_until_a_wait_returns_them() -> None:
    log = SettledLog()

    def add(numbers: range, body: bytes = b"") -> None:
        for number in numbers:
            log.add(MessageExt("T", body, queue_offset=number), Outcome.DONE, None, 0.1)

    async def offsets(n: int) -> list[int]:
        return [each.message.queue_offset for each in await log.wait(n, 1.0)]

    add(range(1500))
    assert log.handled == 1500
    assert await offsets(10) == [*range(10)]
    add(range(2000, 2005))
    assert await offsets(995) == [*range(10, 1000), *range(2000, 2005)]
    waiting = asyncio.create_task(offsets(1200))
    await asyncio.sleep(0)
    add(range(1500))
    assert await waiting == [*range(1200)]
    add(range(20), b"x" * 600_000)
    assert await offsets(2) == [0, 1]
    with pytest.raises(TimeoutError):
        await log.wait(1, 0.01)
