"""The next offset of a queue whose broker does not hold the offset of a pull (PULL_OFFSET_MOVED, 21), or may have other messages
than were read.
"""

# The causes: an operator has reset the group's offset: the pulled offset exists, and the answer names another one to continue
# at. The message is deleted: the offset is below the minimum, and the option ``out_of_range`` applies. The topic was deleted and
# created again (``ReadMarks``): the queue is read from its first message on. The queue has lost messages, because its broker's
# store was replaced by an older one or a replica that lacked them has become the master: it ends below the offset, or was
# filled again since. A member that has read the queue knows by its marks up to where it is the same; one that has just begun
# knows only where it ended, and the option ``above_end`` applies. A broker that starts builds its queues anew, and a replica
# becomes the master before it knows all of them: so an end below the offset is looked up three times, the lowest counts, and
# if the queue is longer afterwards, the times of its messages show whether they are new. If the broker holds the offset and what
# was read, the member goes on with it.

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final, NamedTuple

from rmq_protocol.message import MessageQueue

from .. import machine
from ..client import max_offset, min_offset, store_time_ms
from .looks import CLOCKS_DIFFER, Looks, Seen
from .read_marks import ReadMarks

REPLACED: Final = "its broker's store was replaced by an older one, or a replica that was behind has become the master"
CONFIRMATIONS: Final = 3
STRANGER: Final = 5.0
"""Minimum seconds before a member moves a queue of which it has read nothing. A broker that starts lists the members of a group one
by one, so a queue may be for a moment with a member that does not know what was lost."""


class Cause(Enum):
    RESET = "the group's offset was reset"
    DELETED = "messages were deleted before they were pulled"
    BEYOND_END = "the queue ends below the offset"
    LOST_READ = "the queue has lost messages that were read, and has others or none at their offsets"
    MADE_ANEW = "its topic was deleted and made anew"
    OVER = "the broker holds the offset again"


class Asked(NamedTuple):
    """The pull in question.

    Attributes:
        proposed: The next offset in its answer.
        end: The lowest end below ``offset`` that was seen; None if there is none.
    """

    queue: MessageQueue
    offset: int
    proposed: int
    end: int | None


class Move(NamedTuple):
    """The cause of a refused offset.

    Attributes:
        offset: The offset to continue at; for DELETED the queue's first one.
        first: The queue's first offset. For OVER both have no meaning.
        end: For BEYOND_END the lowest end that was seen, for LOST_READ the first lost offset, as far as the store times show
            it.
    """

    cause: Cause
    offset: int
    first: int
    end: int | None = None


class _View(NamedTuple):
    """What one look shows of a queue that does not have what it should.

    Attributes:
        seen: The result of the look at the newest mark; None without marks.
    """

    seen: Seen | None
    first: int
    end: int | None


async def find_move(looks: Looks, marks: ReadMarks, asked: Asked, patience: float) -> Move:
    """Return why the broker refused an offset, or has other messages than were read, and an offset as ``Move``
    says.

    Raise the errors of the requests.

    Args:
        patience: Seconds in which an end below the offset is looked up three times. Only masters are asked for the ends of the
            queue.
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
    """Look at a queue once.

    Args:
        began: Epoch seconds of the first look.
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
    """Return the move in a queue that has the offset."""
    reset = asked.proposed != asked.offset and low <= asked.proposed <= high
    return Move(Cause.RESET if reset else Cause.OVER, asked.proposed, low)


async def _after_loss(looks: Looks, marks: ReadMarks, asked: Asked, view: _View) -> Move:
    known, (seen, low, end) = marks.of(asked.queue), view
    if not known:
        assert end is not None
        return Move(Cause.BEYOND_END, end, low, end)
    if seen in (Seen.SAME, Seen.ALL):  # what followed is gone, which a filter has left out
        target = known[-1].offset + 1
        return Move(Cause.LOST_READ, target, low, max(target, asked.offset if end is None else end))
    target = await looks.goes_on_at(asked.queue, known, end)
    first_new = await looks.first_new(asked.queue, known)
    return Move(Cause.LOST_READ, target, low, max(target, min(first_new, known[-1].offset)))


async def _is_filled_again(looks: Looks, queue: MessageQueue, end: int, began: float) -> bool:
    """Return whether the message at ``end``, where a queue has ended before, was stored since ``began`` (epoch seconds), as far
    as clocks show it. An older one was there, and the broker did not know it yet.
    """
    stored = await store_time_ms(looks.instance, queue, end, looks.instance.config.request_timeout, any_replica=False)
    return stored / 1000 >= began - CLOCKS_DIFFER
