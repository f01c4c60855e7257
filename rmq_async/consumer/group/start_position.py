"""Where a group starts in a queue.

A committed offset holds. A group without any committed offset for a topic starts where ``start_from`` says, which is looked up
before the first heartbeat and stored at once: what is sent after ``start()`` has returned is delivered. In a topic for which the
group has offsets, a queue without one is new and starts at its first message; so does the retry topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from rmq_protocol.message import MessageQueue

from ..._asyncio import for_each
from ...client import ClientInstance, commit_offset, committed_offset, max_offset, min_offset, search_offset

__all__ = ["StartFrom", "first_positions", "start_offset", "store_positions"]

StartFrom = Literal["latest", "earliest"] | datetime


async def first_positions(
    instance: ClientInstance, group: str, queues: Sequence[MessageQueue], start_from: StartFrom
) -> dict[MessageQueue, int]:
    """Returns the offsets at which a group without any offset in ``queues``, those of one topic, starts; none if it has one.

    Asks masters, and raises the errors of these requests.
    """
    committed = await for_each(queues, lambda queue: committed_offset(instance, group, queue))
    if any(offset is not None for offset in committed.values()):
        return {}
    if isinstance(start_from, datetime):
        return await for_each(queues, lambda queue: search_offset(instance, queue, start_from, any_replica=False))
    find = max_offset if start_from == "latest" else min_offset
    return await for_each(queues, lambda queue: find(instance, queue, any_replica=False))


async def store_positions(instance: ClientInstance, group: str, positions: dict[MessageQueue, int]) -> None:
    """Commits the first positions; returns when the brokers have answered. Raises the errors of these requests."""
    await for_each(positions, lambda queue: commit_offset(instance, group, queue, positions[queue]))


async def start_offset(instance: ClientInstance, group: str, queue: MessageQueue) -> tuple[int, int | None]:
    """Returns the offset at which a member takes the queue over, and the committed one, if there is one."""
    committed = await committed_offset(instance, group, queue)
    if committed is not None:
        return committed, committed
    return await min_offset(instance, queue, any_replica=False), None
