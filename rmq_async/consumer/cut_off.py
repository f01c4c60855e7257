"""The end of a drain at its time limit: calls are cancelled, and messages that the next owner would not pull are given
back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rmq_protocol.message import MessageExt

from .decision import Decision
from .delivery import cut_off
from .held_queue import HeldQueue
from .outcome import Outcome
from .outcomes import Outcomes

__all__ = ["cancel_calls", "give_back_passed", "request_cancel"]


def request_cancel(held: HeldQueue) -> list[asyncio.Task[None]]:
    """Cancels the coroutine calls of a queue that are in their handlers; returns the tasks of all its coroutine calls. Calls
    in threads continue."""
    running = [each for each in dict.fromkeys(held.running.values()) if each.subscription.is_async]
    for delivery in running:
        if delivery.state == "running":
            cut_off(delivery)
    return [each.task for each in running if each.task is not None]


async def cancel_calls(held: HeldQueue, timeout: float) -> None:
    """Cancels the coroutine calls of a queue, and waits for their ends, up to ``timeout`` seconds."""
    tasks = request_cancel(held)
    await asyncio.sleep(0)  # calls that had not made their first step have ended
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


async def give_back_passed(outcomes: Outcomes, held: HeldQueue, left: Iterable[MessageExt]) -> None:
    """Gives back those messages behind which one is settled; the others stay uncommitted."""
    for message in left:
        if held.progress.settled_above(message.queue_offset):
            outcome = await outcomes.give_back(held, message.topic, message, Decision(Outcome.RETRIED))
            if outcome is not Outcome.ABANDONED:
                held.progress.settle(message.queue_offset)
