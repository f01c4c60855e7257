"""The position of a reading in one queue, and the part of a response that lies before the end of the reading."""

from __future__ import annotations

from datetime import datetime

from rmq_protocol.continuity import without_ranges
from rmq_protocol.message import MessageExt, MessageQueue

from ... import machine
from ...results import PullResult, PullStatus
from ..place import Place
from .continuity import SkippedOffsets

__all__ = ["Cursor", "is_doubtful", "until", "within"]


class Cursor:
    """The position of a reading in one queue. ``end``: exclusive; None for no end. ``at_first``: whether to jump to the first
    message when this offset is deleted.

    ``wait_for_end``: whether to wait for messages until ``end`` is reached, however late they are stored. ``skipped``: offsets
    that pulls with tags have skipped and that need a check. ``since``: the time (epoch seconds or aware) at which the reading
    begins, until its offset is found; ``group``: the group at whose committed offset the reading begins, until that is found.
    ``begun``: whether an answer other than OFFSET_ILLEGAL has moved the cursor. ``last``: the place of the message read last;
    ``recheck``: whether the queue may have another message there. ``connection``: the connection of the last pull.
    ``ahead_since``: monotonic time at which the queue was first found to end below the cursor; None without that.
    """

    __slots__ = (
        "ahead_since", "at_first", "begun", "connection", "end", "group", "last", "offset", "queue", "recheck", "since", "skipped",
        "wait_for_end",
    )  # fmt: skip

    def __init__(
        self, queue: MessageQueue, offset: int, end: int | None, *, at_first: bool = False, wait_for_end: bool = False
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.at_first = at_first
        self.wait_for_end = wait_for_end
        self.skipped: SkippedOffsets | None = None
        self.since: float | datetime | None = None
        self.group: str | None = None
        self.begun = False
        self.last: Place | None = None
        self.recheck = False
        self.connection: object = None
        self.ahead_since: float | None = None

    def pulls_by(self, connection: object) -> None:
        """Notes the connection of the next pull. If it is another one than before, the broker may have restarted and lost
        messages, so the last message is checked."""
        if connection is not self.connection:
            self.connection = connection
            self.recheck = self.recheck or self.last is not None

    def is_ahead_for(self) -> float:
        """Returns the seconds since the queue was first found to end below the cursor, 0 if this is the first time."""
        now = machine.monotonic()
        if self.ahead_since is None:
            self.ahead_since = now
        return now - self.ahead_since

    @property
    def finished(self) -> bool:
        """Returns whether the queue is read to its end and no offset needs a check."""
        return self.end is not None and self.offset >= self.end and not self.skipped

    @property
    def check_due(self) -> bool:
        skipped = self.skipped
        return skipped is not None and bool(skipped) and (skipped.is_due or (self.end is not None and self.offset >= self.end))


def within(messages: tuple[MessageExt, ...], offset: int, end: int | None) -> tuple[MessageExt, ...]:
    """Returns the messages from ``offset`` up to, not including, ``end``: a broker delivers a whole batch that was stored
    as one record."""
    if not messages:
        return messages
    if messages[0].queue_offset >= offset and (end is None or messages[-1].queue_offset < end):
        return messages
    return tuple(m for m in messages if m.queue_offset >= offset and (end is None or m.queue_offset < end))


def until(lost: tuple[range, ...], end: int | None) -> tuple[range, ...]:
    """Returns the part of ``lost`` before ``end``."""
    return lost if end is None or not lost else without_ranges(lost, (range(end, max(end, lost[-1].stop)),))


def is_doubtful(cursor: Cursor, result: PullResult) -> bool:
    """Returns whether the result would end the reading, or keep it at its offset, because the broker does not hold an offset."""
    if result.status is PullStatus.OFFSET_ILLEGAL:
        return not (cursor.at_first and cursor.offset < result.min_offset)
    if result.next_offset <= cursor.offset:
        return cursor.end is not None
    return bool(result.lost) and not cursor.at_first
