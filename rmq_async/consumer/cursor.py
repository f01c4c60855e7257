"""Where one queue is read, and what of an answer lies in what is to be read of it."""

from __future__ import annotations

from rmq_protocol.continuity import without_ranges
from rmq_protocol.message import MessageExt, MessageQueue

from .continuity import PassedOver

__all__ = ["Cursor", "until", "within"]


class Cursor:
    """Where one queue is read. ``end``: exclusive; None follows. ``at_first``: jump to the first offset there is when this is gone.

    ``wait_for_end``: wait for messages until ``end`` is reached, else only for those that are on their way. ``passed``: what pulls
    with tags left out and is to be checked. ``begun``: an answer has moved it on.
    """

    __slots__ = ("at_first", "begun", "end", "offset", "passed", "queue", "wait_for_end")

    def __init__(
        self, queue: MessageQueue, offset: int, end: int | None, *, at_first: bool = False, wait_for_end: bool = False
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.end = end
        self.at_first = at_first
        self.wait_for_end = wait_for_end
        self.passed: PassedOver | None = None
        self.begun = False

    @property
    def finished(self) -> bool:
        """Whether it is read to its end, and nothing is to be checked."""
        return self.end is not None and self.offset >= self.end and not self.passed

    @property
    def check_due(self) -> bool:
        passed = self.passed
        return passed is not None and bool(passed) and (passed.is_due or (self.end is not None and self.offset >= self.end))


def within(messages: tuple[MessageExt, ...], offset: int, end: int | None) -> tuple[MessageExt, ...]:
    """Without those outside [offset, end): a batch that was stored as one record is delivered whole."""
    if not messages:
        return messages
    if messages[0].queue_offset >= offset and (end is None or messages[-1].queue_offset < end):
        return messages
    return tuple(m for m in messages if m.queue_offset >= offset and (end is None or m.queue_offset < end))


def until(lost: tuple[range, ...], end: int | None) -> tuple[range, ...]:
    """What of ``lost`` lies before ``end``."""
    return lost if end is None or not lost else without_ranges(lost, (range(end, max(end, lost[-1].stop)),))
