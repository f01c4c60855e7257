"""The next offset of a queue whose broker does not hold the offset of a pull (PULL_OFFSET_MOVED, 21)."""

# There are four causes. An operator has reset the group's offset: the pulled offset exists, and the answer names another one to
# continue at. The message is deleted: the offset is below the minimum, and the option ``out_of_range`` applies. The queue ends
# below the offset: a new master lacks messages, or is not the master yet; the end is looked up three times before the member
# goes back to it. The topic was deleted and created again (``ReadMarks``): the queue is read from its first message on. If the
# broker holds the offset by now, the member goes on with it.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from rmq_protocol.message import MessageQueue

from ...client import ClientInstance, max_offset, min_offset

__all__ = ["Cause", "Move", "find_move"]

CONFIRMATIONS: Final = 3


class Cause(Enum):
    RESET = "the group's offset was reset"
    DELETED = "messages were deleted before they were pulled"
    BEYOND_END = "the queue ends below the offset"
    MADE_ANEW = "its topic was deleted and made anew"
    OVER = "the broker holds the offset again"


class Move(NamedTuple):
    """The cause of a refused offset. ``offset``: the offset to continue at; for DELETED the queue's first one; without a
    meaning for OVER, which changes nothing."""

    cause: Cause
    offset: int


async def find_move(
    instance: ClientInstance,
    queue: MessageQueue,
    offset: int,
    proposed: int,
    patience: float,
    made_anew: Callable[[], Awaitable[bool]],
) -> Move:
    """Returns why the broker refused an offset, and an offset as ``Move`` says.

    ``offset``: the offset of the pull. ``proposed``: the next offset in the answer. ``patience``: seconds in which an end below
    ``offset`` is looked up three times. ``made_anew``: returns whether the queue was created again. Only masters are asked for
    the ends of the queue. Raises the errors of the requests.
    """
    for confirmation in range(CONFIRMATIONS):
        low = await min_offset(instance, queue, any_replica=False)
        high = await max_offset(instance, queue, any_replica=False)
        if await made_anew():
            return Move(Cause.MADE_ANEW, low)
        if offset < low:
            return Move(Cause.DELETED, low)
        if offset <= high:
            return Move(Cause.RESET if proposed != offset and low <= proposed <= high else Cause.OVER, proposed)
        if confirmation < CONFIRMATIONS - 1:
            await asyncio.sleep(patience / (CONFIRMATIONS - 1))
    return Move(Cause.BEYOND_END, high)
