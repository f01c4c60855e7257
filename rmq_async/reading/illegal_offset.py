"""Determines the next offset of a queue whose broker does not have the offset of a pull (PULL_OFFSET_MOVED, 21), or may have other
messages than the messages that were read.
"""

# There are four causes.
#
# 1. An operator has reset the group's offset. The pulled offset exists, and the response names another offset to continue at.
# 2. The message was deleted. The offset is below the minimum, and the option ``out_of_range`` applies.
# 3. The topic was deleted and created again (``ReadMarks``). The queue is read from its first message on.
# 4. The queue has lost messages, because its broker's store was replaced by an older copy, or a replica without these messages
#    became the master. The queue ends below the offset, or has been filled again since. A member that has read the queue knows
#    from its marks up to which offset the queue is unchanged. A member that has just begun knows only where the queue ended,
#    and the option ``above_end`` applies.
#
# A broker that starts rebuilds its queues, and a replica may become the master before it knows all of them. So an end below the
# offset is checked three times, and the lowest end counts. If the queue is longer afterwards, the store times of its messages
# show whether they are new. If the broker has the offset and the messages that were read, the member continues there.

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from rmq_protocol.message import MessageQueue

from .. import machine
from ..client import max_offset, min_offset, store_time_ms
from .looks import CLOCKS_DIFFER, Looks, Seen
from .read_marks import ReadMarks

REPLACED: Final = "its broker's store was replaced by an older copy, or a replica that lagged behind became the master"
CONFIRMATIONS: Final = 3
STRANGER: Final = 5.0
"""Minimum seconds before a member moves a queue that it has not read. A broker that starts lists the members of a group one by one,
so a queue may be assigned for a moment to a member that does not know what was lost."""


class Cause(Enum):
    RESET = "the group's offset was reset"
    DELETED = "messages were deleted before they were pulled"
    BEYOND_END = "the queue ends below the offset"
    LOST_READ = "the queue has lost messages that were read, and has other messages or none at their offsets"
    MADE_ANEW = "its topic was deleted and created again"
    OVER = "the broker has the offset again"


class Asked(NamedTuple):
    """A pull whose offset the broker does not have, or whose queue may have other messages than before.

    Attributes:
        offset: The offset of the pull.
        proposed: The next offset in the response.
        end: The lowest observed end below ``offset``; None if there is none.
    """

    queue: MessageQueue
    offset: int
    proposed: int
    end: int | None


class Move(NamedTuple):
    """The reason why a broker does not have an offset, or has other messages there, and where to continue.

    Attributes:
        offset: The offset to continue at; for DELETED, the queue's first offset. It has no meaning for OVER.
        first: The queue's first offset. It has no meaning for OVER.
        end: For BEYOND_END, the lowest observed end. For LOST_READ, the first lost offset, as far as the store times show it.
    """

    cause: Cause
    offset: int
    first: int
    end: int | None = None


class _View(NamedTuple):
    """The result of one check of a queue that does not have the expected messages.

    Attributes:
        seen: The result of the check at the last mark; None if there are no marks.
        first: The queue's first offset.
        end: The lowest observed end below the offset; None if there is none.
    """

    seen: Seen | None
    first: int
    end: int | None


async def find_move(looks: Looks, marks: ReadMarks, asked: Asked, patience: float) -> Move:
    """Return why the broker refused an offset, or has other messages than the messages that were read, and where to continue.

    The errors of the requests propagate. The ends of the queue are requested from masters only.

    Args:
        patience: Seconds over which an end below the offset is checked three times.
    """
    began = machine.time()
    if asked.queue not in marks:
        patience = max(patience, STRANGER)
    for confirmation in range(CONFIRMATIONS):
        if confirmation:
            await asyncio.sleep(patience / (CONFIRMATIONS - 1))
        found = await _look(looks, marks, asked, began)
        if isinstance(found, _View):
            asked = asked._replace(end=found.end)
        elif found.cause is not Cause.BEYOND_END:
            return found
    return found if isinstance(found, Move) else await _after_loss(looks, marks, asked, found)


async def _look(looks: Looks, marks: ReadMarks, asked: Asked, began: float) -> Move | _View:
    """Check a queue once.

    Args:
        began: Time of the first check, in seconds since the epoch.
    """
    instance, (queue, offset, _, end) = looks.instance, asked
    known = marks.of(queue)
    seen = await looks.at(queue, known[-1], offset) if known else None
    if seen is Seen.ALL and asked == (queue, offset, offset, None):
        return Move(Cause.OVER, offset, 0)
    low = await min_offset(instance, queue, any_replica=False)
    high = await max_offset(instance, queue, any_replica=False)
    if high < offset:
        end = high if end is None else min(end, high)
    view = _View(seen, low, end)
    if seen in (Seen.OTHER, Seen.GONE):
        if await marks.made_anew(instance, queue):
            return Move(Cause.MADE_ANEW, low, low)
        return view if seen is Seen.GONE else await _after_loss(looks, marks, asked, view)
    if offset < low:
        return Move(Cause.DELETED, low, low)
    if offset > high:
        return view
    if seen is None and end is not None and await _is_filled_again(looks, queue, end, began):
        return Move(Cause.BEYOND_END, end, low, end)
    return _proposed(asked, low, high)


def _proposed(asked: Asked, low: int, high: int) -> Move:
    """Return the move for a queue that has the offset."""
    reset = asked.proposed != asked.offset and low <= asked.proposed <= high
    return Move(Cause.RESET if reset else Cause.OVER, asked.proposed, low)


async def _after_loss(looks: Looks, marks: ReadMarks, asked: Asked, view: _View) -> Move:
    known, (seen, low, end) = marks.of(asked.queue), view
    if not known:
        assert end is not None
        return Move(Cause.BEYOND_END, end, low, end)
    if seen in (Seen.SAME, Seen.ALL):  # only messages after the mark, which a filter has excluded, are lost
        target = known[-1].offset + 1
        return Move(Cause.LOST_READ, target, low, max(target, asked.offset if end is None else end))
    target = await looks.goes_on_at(asked.queue, known, end)
    first_new = await looks.first_new(asked.queue, known)
    return Move(Cause.LOST_READ, target, low, max(target, min(first_new, known[-1].offset)))


async def _is_filled_again(looks: Looks, queue: MessageQueue, end: int, began: float) -> bool:
    """Return whether the message at ``end``, where the queue ended before, was stored since ``began`` (epoch seconds), as far as
    clocks show it. If it is older, the message existed before, but the broker did not know it yet.
    """
    stored = await store_time_ms(looks.instance, queue, end, looks.instance.config.request_timeout, any_replica=False)
    return stored / 1000 >= began - CLOCKS_DIFFER
