"""The position of a read (one iteration of ``PullConsumer.read``) in one queue, and the part of a response that belongs to the
read.
"""

from __future__ import annotations

from datetime import datetime

from rmq_protocol.continuity import without_ranges
from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..results import PullResult, PullStatus
from .skipped_offsets import SkippedOffsets


class Cursor:
    """The position of a read in one queue.

    Args:
        offset: The offset at which the read begins.
        end: The offset before which the read ends; None for no end.
        at_first: Whether to move to the first message if the message at the cursor has been deleted.
        wait_for_end: Whether to wait for messages until ``end`` is reached, however late they are stored.
        is_filtered: Whether brokers filter the messages of the queue.

    Attributes:
        skipped: Offsets that pulls with tags have skipped and that must be checked; None if there are none.
        since: The time (epoch seconds or an aware datetime) at which the read begins; None after its offset was found.
        group: Whether the read begins at the group's offset; False after that offset was found.
        begun: Whether a response other than OFFSET_ILLEGAL has moved the cursor.
        ahead_since: Monotonic time at which the queue was first found to end below the cursor; None if it does not.
        first: The offset at which the read began.
        watched: Whether a message is known that the queue should still have.
        doubtful: Whether the queue may have lost messages.
        unmarked: Whether the start must still be found, or the message before the cursor must be added to the marks
            (``ReadMarks``).
        connection: The connection of the last pull or check.
        answered_at: Monotonic time of the last response.
        high: The end of the queue in the last response.
    """

    __slots__ = (
        "ahead_since", "answered_at", "at_first", "begun", "connection", "doubtful", "end", "first", "group", "high", "is_filtered",
        "offset", "queue", "since", "skipped", "unmarked", "wait_for_end", "watched",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        end: int | None,
        *,
        at_first: bool = False,
        wait_for_end: bool = False,
        is_filtered: bool = False,
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.at_first = at_first
        self.wait_for_end = wait_for_end
        self.skipped: SkippedOffsets | None = None
        self.since: float | datetime | None = None
        self.group = False
        self.begun = False
        self.is_filtered = is_filtered
        self.ahead_since: float | None = None
        self.first = offset
        self.watched = self.doubtful = False
        self.unmarked = self._is_lasting and offset > 0
        self.connection: object = None
        self.answered_at = machine.monotonic()
        self.high = 0

    def begins_at(self, offset: int) -> None:
        """Move the cursor to the start that was found, before the first message is read."""
        self.offset = self.first = offset
        self.unmarked = self._is_lasting and offset > 0

    def go_back(self, offset: int) -> None:
        """Move the cursor back to ``offset``. The messages from there on are pulled again."""
        self.offset = offset
        if self.skipped is not None:
            self.skipped.cut(offset)

    def pulls_by(self, connection: object) -> None:
        """Note the connection of the next pull. If it is a new connection, the broker may have restarted and lost messages."""
        if connection is not self.connection:
            self.connection = connection
            self.doubt()

    def doubt(self) -> None:
        """Note that the queue may have lost messages."""
        self.doubtful = self.watched or self.begun

    @property
    def _is_lasting(self) -> bool:
        """Whether the read may wait for its first message."""
        return self.end is None or self.wait_for_end

    def is_ahead_for(self) -> float:
        """Return the seconds since the queue was first found to end below the cursor. Return 0 the first time."""
        now = machine.monotonic()
        if self.ahead_since is None:
            self.ahead_since = now
        return now - self.ahead_since

    @property
    def finished(self) -> bool:
        """Whether the read has reached its end in this queue, and no skipped offset must be checked."""
        return self.end is not None and self.offset >= self.end and not self.skipped

    @property
    def check_due(self) -> bool:
        skipped = self.skipped
        return skipped is not None and bool(skipped) and (skipped.is_due or (self.end is not None and self.offset >= self.end))


def within(messages: tuple[MessageExt, ...], offset: int, end: int | None) -> tuple[MessageExt, ...]:
    """Return the messages from ``offset`` up to, not including, ``end``. Other messages may come with them, because a broker
    delivers a batch that was stored as one record as a whole.
    """
    if not messages:
        return messages
    if messages[0].queue_offset >= offset and (end is None or messages[-1].queue_offset < end):
        return messages
    return tuple(m for m in messages if m.queue_offset >= offset and (end is None or m.queue_offset < end))


def until(lost: tuple[range, ...], end: int | None) -> tuple[range, ...]:
    """Return the part of ``lost`` before ``end``."""
    return lost if end is None or not lost else without_ranges(lost, (range(end, max(end, lost[-1].stop)),))


def is_doubtful(cursor: Cursor, result: PullResult) -> bool:
    """Return whether the result would make the read fail or stay at its offset, because the broker does not have an offset."""
    if result.status is PullStatus.OFFSET_ILLEGAL:
        return not (cursor.at_first and cursor.offset < result.min_offset)
    if result.next_offset <= cursor.offset:
        return cursor.end is not None
    return bool(result.lost) and not cursor.at_first
