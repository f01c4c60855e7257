"""Detects whether the queues of a read (``PullConsumer.read``) have lost messages, and determines where the read begins in queues
that were added after its start.
"""

# A broker that loses power or gets an older store, and a replica that lags behind and becomes the master, assign offsets again.
# When new messages have filled the queue past the position of a read, the next pull looks normal, and new messages below the
# position would never be read. So after a new connection, an error, an end below an earlier end, or UNWATCHED seconds without a
# pull, one small pull requests the last known message (``ReadMarks``). This is a message that was read or, in a read without
# an end, the message before its start. If the message is gone, the read ends: it delivers each message once, in the order of
# its queue, and would have to move back to continue.
#
# With tags, a read may have passed offsets after that message. It moves back to the offset after the message and pulls these
# offsets again. It has delivered no message from there, and other messages may be there now.

# A new queue on a broker that the route named at the start is read from its first message, because all its messages are newer.
# For ``start="committed"``, it is read from the group's offset if there is one. A broker that the route did not name at the start
# may be new, or it may have been unreachable and have old messages. Its queues begin as the read began: with the first message
# (``start="earliest"``), at the group's offset (``start="committed"``), or with the first message stored at the datetime
# ``start`` or later. For any other ``start``, they begin with the first message stored after the start of the read. That time
# comes from the client's clock and is compared with times of the broker's clock, so CLOCKS_DIFFER is subtracted.

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from rmq_protocol.message import MessageQueue

from .. import machine
from ..client import ClientInstance, TopicRoute, committed_offset, has_master, max_offset, search_offset
from ..errors import BrokerNotFoundError, OffsetRangeError
from ..results import PullResult
from .cursor import Cursor
from .illegal_offset import REPLACED, Asked, Cause, Move, find_move
from .looks import CLOCKS_DIFFER, Looks
from .read_marks import REACH, ReadMarks

logger = logging.getLogger(__name__)

AboveEnd = Literal["end", "earliest", "stop"]

AHEAD_PATIENCE: Final = 1.0
"""Seconds to wait at an offset that is above the end that the broker reports, because a stored message becomes readable a moment
later."""
STARTING: Final = 10.0
"""Seconds over which an end below the group's offset is checked three times, because a broker that starts shows its queues late."""


class Watch:
    """Checks whether the queues of one read have lost messages, with the marks of messages that were read (``ReadMarks``).

    Args:
        group: Name on the wire of the group whose committed offsets are used.
        above_end: The argument of ``PullConsumer.read``.
    """

    def __init__(self, instance: ClientInstance, group: str, above_end: AboveEnd) -> None:
        self._instance = instance
        self._group = group
        self._above_end = above_end
        self._looks = Looks(instance, group)
        self.marks = ReadMarks()

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset at which a read continues: the committed offset or, if the queue ends below it, the offset
        according to ``above_end``. Return None if there is no committed offset.

        Raises:
            OffsetRangeError: If the queue ends below the committed offset, and ``above_end`` is "stop". The errors of the requests
                also propagate.
        """
        offset = await committed_offset(self._instance, self._group, queue, any_replica=False)
        if not offset:
            return offset
        look = await self._looks.first(queue, offset)
        if look.mark is not None:
            self.marks.add(queue, look.mark)
            return offset
        move = await find_move(self._looks, self.marks, Asked(queue, offset, offset, look.end), STARTING)
        return self._above(queue, offset, move) if move.cause is Cause.BEYOND_END else offset

    def _above(self, queue: MessageQueue, offset: int, move: Move) -> int:
        shown, end = self._instance.names.shown_queue(queue), move.offset
        if self._above_end == "stop":
            raise OffsetRangeError(
                f"the group's offset {offset} of {shown} is above its end {end}, because {REPLACED}; begin at another offset or at "
                "a datetime, or commit a lower offset",
                min_offset=move.first,
                max_offset=end,
                request="PULL_MESSAGE",
                broker=queue.broker_name,
            )
        target = end if self._above_end == "end" else move.first
        left_out = "messages stored between the loss and this check are skipped"
        if target == move.first:
            left_out = "all its messages are read"
        text = (
            "%s is read from offset %d on instead of the group's %d: it ends at %d (about %d messages are lost), because %s; %s; "
            "to go back further, begin at a datetime"
        )
        logger.error(text, shown, target, offset, end, offset - end, REPLACED, left_out)
        return target

    async def look(self, cursor: Cursor) -> OffsetRangeError | None:
        """Check the queue of a cursor before a pull.

        In a read with tags, move the cursor back to the last mark if other messages may follow it. A message that was deleted
        because of its age does not cause an error. The errors of the requests propagate.

        Returns:
            An error if the queue has lost messages that were read, or that lay before the start of a read without an end. If the
            queue ends below the cursor, the error is returned after AHEAD_PATIENCE seconds. None if nothing is lost.
        """
        marks, queue, offset = self.marks, cursor.queue, cursor.offset
        if cursor.doubtful:
            if queue in marks:
                move = await find_move(self._looks, marks, Asked(queue, offset, offset, None), AHEAD_PATIENCE)
                if move.cause in (Cause.LOST_READ, Cause.MADE_ANEW):
                    return await self._lost(cursor, move)
            cursor.doubtful = False
            if cursor.is_filtered and (back := max(marks.newest(queue) + 1, cursor.first)) < offset:
                cursor.go_back(back)
        elif marks.newest(queue) < offset - 1:
            look = await self._looks.first(queue, offset)
            if look.mark is not None:
                marks.add(queue, look.mark)
        cursor.watched = queue in marks
        cursor.unmarked = False
        return None

    def is_far(self, cursor: Cursor) -> bool:
        """Return whether a cursor is far above its last mark, because brokers filter the messages of its queue."""
        return cursor.is_filtered and cursor.offset - max(self.marks.newest(cursor.queue) + 1, cursor.first) > REACH

    async def _lost(self, cursor: Cursor, move: Move) -> OffsetRangeError:
        instance, queue = self._instance, cursor.queue
        shown = instance.names.shown_queue(queue)
        if move.cause is Cause.MADE_ANEW:
            text = f"{shown} was read up to offset {cursor.offset}; its topic was deleted and created again; start a new read"
        else:
            text = (
                f"{shown} has lost messages that were read, or that lay before the start, and assigns their offsets again: it "
                f"was read up to offset {cursor.offset}, and may have other messages from {move.offset} on, because {REPLACED}; "
                "start a new read there, or at the store time of the last message minus 10 s; some messages may be repeated"
            )
        return OffsetRangeError(
            text,
            min_offset=move.first,
            max_offset=await max_offset(instance, queue, any_replica=False),
            request="PULL_MESSAGE",
            broker=queue.broker_name,
        )


def range_error(instance: ClientInstance, cursor: Cursor, result: PullResult, lost: tuple[range, ...] = ()) -> OffsetRangeError:
    queue = instance.names.shown_queue(cursor.queue)
    return OffsetRangeError(
        f"offset {cursor.offset} of {queue} is outside {result.min_offset}..{result.max_offset}; "
        "start a new read in this range",
        min_offset=result.min_offset,
        max_offset=result.max_offset,
        lost=lost,
        request="PULL_MESSAGE",
        broker=cursor.queue.broker_name,
    )


async def believe(instance: ClientInstance, cursor: Cursor) -> None:
    """Raise BrokerNotFoundError if the broker has no master, because a replica may lack messages or have deleted more messages."""
    if not await has_master(instance, cursor.queue):
        queue = instance.names.shown_queue(cursor.queue)
        raise BrokerNotFoundError(
            f"the broker of {queue} has no master now, and its replica may lack messages at offset {cursor.offset}; try again when "
            "it has a master",
            broker=cursor.queue.broker_name,
        )


class Latecomers:
    """The queues that are added to a topic while it is read.

    Args:
        start: The argument of ``PullConsumer.read``.
        is_filtered: The argument of ``Cursor``.
    """

    def __init__(self, start: object, is_filtered: bool) -> None:
        self._start = start
        self._is_filtered = is_filtered
        self._since = machine.time() - CLOCKS_DIFFER
        self._brokers: frozenset[str] = frozenset()

    def opened(self, queues: Iterable[MessageQueue], route: TopicRoute | None) -> None:
        """Note the brokers of the queues with which the read begins, and the brokers that the route names then."""
        known = {queue.broker_name for queue in queues}
        if route is not None:
            known.update(route.addresses, [queue.broker_name for queue in route.subscribe_queues])
        self._brokers = frozenset(known)

    def cursor(self, queue: MessageQueue) -> Cursor:
        """Return the cursor of a queue that was added."""
        cursor = Cursor(queue, 0, None, at_first=True, is_filtered=self._is_filtered)
        if self._start == "committed":
            cursor.group = True
        elif self._start != "earliest" and queue.broker_name not in self._brokers:
            cursor.since = self._start if isinstance(self._start, datetime) else self._since
        cursor.unmarked = cursor.group or cursor.since is not None
        return cursor


async def find_start(instance: ClientInstance, cursor: Cursor, watch: Watch) -> None:
    """Move a cursor to its start, if that must still be found: the group's offset (``Watch.committed``), if there is one, or the
    first message stored at ``since`` or later. The errors of the requests propagate.
    """
    if cursor.group:
        committed = await watch.committed(cursor.queue)
        if committed is not None:
            cursor.begins_at(committed)
            cursor.at_first = False
        cursor.group = False
    if cursor.since is not None:
        cursor.begins_at(await search_offset(instance, cursor.queue, cursor.since, any_replica=False))
        cursor.since = None
