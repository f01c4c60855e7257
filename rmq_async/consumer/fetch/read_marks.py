"""The highest offsets that this member has read, to detect a queue whose topic was deleted and created again."""

# Brokers do not report that: offsets begin at 0 again, and a member that continues at its old offset would leave messages out.
# But the messages of a queue are stored in the order of their offsets. So a queue was created again if its first message was
# stored after a message that was read at the same offset or a higher one. If a broker did not know the topic only for a moment,
# the first message is still the old one. A mark is void once another member has read the queue, because that member may have
# begun at offset 0 of the new queue.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmq_protocol.message import MessageExt, MessageQueue

from ...client import ClientInstance, earliest_store_time_ms, min_offset

__all__ = ["ReadMarks"]

MOST_KEPT: Final = 16_384


class ReadMarks:
    """The marks of up to MOST_KEPT queues: the highest offset that was read in a queue, and the time in epoch ms at which that
    message was stored.

    ``doubted``: queues to check before the next answer of a pull is used.
    """

    __slots__ = ("_left_at", "_marks", "doubted")

    def __init__(self) -> None:
        self._marks: dict[MessageQueue, tuple[int, int]] = {}
        self._left_at: dict[MessageQueue, int | None] = {}
        """The last committed offset of queues that were given up."""
        self.doubted: set[MessageQueue] = set()

    def read(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Notes the messages of an answer, at least one, in the order of their offsets."""
        marks, last = self._marks, messages[-1]
        known = marks.get(queue)
        if known is None:
            while len(marks) >= MOST_KEPT:
                self.forget(next(iter(marks)))
        elif known[0] >= last.queue_offset:
            return
        marks[queue] = last.queue_offset, last.store_time_ms

    def doubt(self, queues: Iterable[MessageQueue]) -> None:
        """Notes that queues with a mark must be checked: they have left the route of their topic, or their broker does not know
        them, so the topic may have been deleted."""
        self.doubted.update(queue for queue in queues if queue in self._marks)

    def forget(self, queue: MessageQueue) -> None:
        """Removes the mark of a queue: its offsets are no longer those of the messages that were read."""
        self._marks.pop(queue, None)
        self._left_at.pop(queue, None)
        self.doubted.discard(queue)

    def given_up(self, queue: MessageQueue, committed: int | None) -> None:
        """Notes this member's last committed offset in a queue with a mark that leaves this member."""
        if queue in self._marks:
            self._left_at[queue] = committed

    def taken_over(self, queue: MessageQueue, committed: int | None) -> None:
        """Removes the mark of a queue that returns with another committed offset: another member has read the queue."""
        if queue in self._left_at and self._left_at.pop(queue) != committed:
            self.forget(queue)

    async def made_anew(self, instance: ClientInstance, queue: MessageQueue) -> bool:
        """Returns whether the first message of a queue shows that the queue was created again since it was read; False without
        a mark. Raises the errors of the requests."""
        mark = self._marks.get(queue)
        if mark is None:
            return False
        offset, stored = mark
        first_stored = await earliest_store_time_ms(instance, queue)
        return first_stored > stored and await min_offset(instance, queue, any_replica=False) <= offset
