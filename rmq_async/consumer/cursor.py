"""The position of a reading in one queue, and the part of a response that lies before its end."""

from __future__ import annotations

from rmq_protocol.continuity import without_ranges
from rmq_protocol.message import MessageExt, MessageQueue

from ..results import PullResult, PullStatus
from .continuity import SkippedOffsets

__all__ = ["Cursor", "is_doubtful", "until", "within"]


class Cursor:
    """Position in one queue. ``end``: exclusive; None follows. ``at_first``: jump to the first message when this offset is deleted.

    ``wait_for_end``: wait for messages until ``end`` is reached, however late they are stored. ``skipped``: offsets that pulls with
    tags skipped and that need a check. ``begun``: a response has moved it on.
    """

    __slots__ = ("at_first", "begun", "end", "offset", "queue", "skipped", "wait_for_end")

    def __init__(
        self, queue: MessageQueue, offset: int, end: int | None, *, at_first: bool = False, wait_for_end: bool = False
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.at_first = at_first
        self.wait_for_end = wait_for_end
        self.skipped: SkippedOffsets | None = None
        self.begun = False

    @property
    def finished(self) -> bool:
        """Whether the queue is read to its end, and no offset needs a check."""
        return self.end is not None and self.offset >= self.end and not self.skipped

    @property
    def check_due(self) -> bool:
        skipped = self.skipped
        return skipped is not None and bool(skipped) and (skipped.is_due or (self.end is not None and self.offset >= self.end))


def within(messages: tuple[MessageExt, ...], offset: int, end: int | None) -> tuple[MessageExt, ...]:
    """The messages inside [offset, end): a broker delivers a batch that was stored as one record whole."""
    if not messages:
        return messages
    if messages[0].queue_offset >= offset and (end is None or messages[-1].queue_offset < end):
        return messages
    return tuple(m for m in messages if m.queue_offset >= offset and (end is None or m.queue_offset < end))


def until(lost: tuple[range, ...], end: int | None) -> tuple[range, ...]:
    """The part of ``lost`` before ``end``."""
    return lost if end is None or not lost else without_ranges(lost, (range(end, max(end, lost[-1].stop)),))


def is_doubtful(cursor: Cursor, result: PullResult) -> bool:
    """Whether the result ends or stops the reading because the broker does not hold an offset."""
    if result.status is PullStatus.OFFSET_ILLEGAL:
        return not (cursor.at_first and cursor.offset < result.min_offset)
    if result.next_offset <= cursor.offset:
        return cursor.end is not None
    return bool(result.lost) and not cursor.at_first
