"""The end of a drain at its time limit: calls are cancelled, and messages that the next owner would not pull are given
back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from rmq_protocol.message import MessageExt

from .delivery import cut_off
from .held_queue import HeldQueue
from .outcomes import Outcomes

__all__ = ["cancel_calls", "give_back_passed", "request_cancel", "warn_running"]

logger = logging.getLogger(__name__)


def request_cancel(held: HeldQueue) -> list[asyncio.Task[None]]:
    """Cancels the coroutine calls of a queue that are in their handlers; returns the tasks of its coroutine calls. Calls in
    threads continue."""
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


async def give_back_passed(outcomes: Outcomes, held: HeldQueue, left: Collection[MessageExt], timeout: float) -> None:
    """Gives back those messages behind which one is settled, for up to ``timeout`` seconds; the others stay uncommitted."""
    passed = [message for message in left if held.progress.settled_above(message.queue_offset)]
    for message in passed:
        outcomes.give_back(held, message.topic, message, "its queue left this member before a call of its handler ended")
    try:
        async with asyncio.timeout(timeout):
            while held.returning:
                held.changed.clear()
                await held.changed.wait()
    except TimeoutError:
        logger.warning(
            "%d messages of %s were not given back within %.1f s, and settled ones behind them are delivered again; look "
            "for errors of the broker, and for a stop raise stop_timeout",
            len(held.returning),
            held.shown,
            timeout,
        )
        outcomes.give_backs.abandon(held)


def warn_running(held: HeldQueue) -> None:
    """Logs that calls of a queue run on after its drain."""
    logger.warning(
        "calls of %d messages of %s run on after the handover, and the messages may be delivered again; raise "
        "handover_timeout, and for a stop stop_timeout",
        len(held.running),
        held.shown,
    )
