"""Marks: the places of messages that this member has read, which show whether a queue has lost messages or was created again."""

# Brokers do not report such losses. A broker whose store was replaced by an older copy, a replica without messages that became
# the master, and a topic that was deleted and created again assign offsets again, and a member that continues at its old offset
# would skip messages. So each queue has marks. The last mark shows whether the queue still has the messages that were read; if it
# does not, older marks show up to which offset it has them. Marks are dense near the last one and sparse further back. If a queue
# had been read to its end when this member took it over, its first mark is the message before its start.
#
# Messages are stored in the order of their offsets. So a queue was created again if its first message was stored after a message
# that was read at the same or a higher offset. Marks are invalid after another member has read the queue, because that member may
# already have moved back.
#
# A broker that starts lists the members of a group one by one. So a queue that has lost messages may be assigned for a moment to a
# member that knows nothing of the loss and begins after the first new messages. The member that had moved the queue back therefore
# remembers the offset.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..client import ClientInstance, earliest_store_time_ms, min_offset
from .looks import Place, place_of

UNWATCHED: Final = 5.0
"""Seconds between a response and the next pull after which a queue is checked, because it may have been created again meanwhile."""
AWAY: Final = 60.0
"""Maximum seconds after which a queue returns to its member, if it was assigned to another member only because a broker lists the
members one by one."""
REACH: Final = 16_384
"""With a filter, the number of offsets without a message after which a check adds a mark."""
MOST_KEPT: Final = 16_384
MOST_OF_QUEUE: Final = 48
APART: Final = 2.0
"""Maximum ratio of a mark's distance from the newest mark to the distance of the next newer mark."""


class ReadMarks:
    """The marks of up to MOST_KEPT queues, up to MOST_OF_QUEUE of each.

    Attributes:
        doubted: Queues to check before the next response to a pull is used.
    """

    __slots__ = ("_left_at", "_marks", "_unread", "doubted")

    def __init__(self) -> None:
        self._marks: dict[MessageQueue, list[Place]] = {}
        """The marks of each queue, lowest first."""
        self._left_at: dict[MessageQueue, int | None] = {}
        """For queues that were given up: the highest offset that this member may have committed, or None."""
        self._unread: dict[MessageQueue, tuple[int, float]] = {}
        """Queues that left this member before it had handled the messages in place of lost messages: the offset of these
        messages, and the monotonic time at which the queue left. Entries are kept for AWAY seconds."""
        self.doubted: set[MessageQueue] = set()

    def __contains__(self, queue: object) -> bool:
        return queue in self._marks

    def of(self, queue: MessageQueue) -> Sequence[Place]:
        """Return the marks of a queue, lowest first."""
        return tuple(self._marks.get(queue, ()))

    def newest(self, queue: MessageQueue) -> int:
        """Return the offset of the last mark of a queue. Return -1 if there is none."""
        marks = self._marks.get(queue)
        return marks[-1].offset if marks else -1

    def read(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Note the messages of a response. There must be at least one, and they must be in the order of their offsets."""
        if queue not in self._marks:
            self.add(queue, place_of(messages[0]))
        self.add(queue, place_of(messages[-1]))

    def add(self, queue: MessageQueue, place: Place) -> None:
        """Note one message. A message below the last mark is ignored."""
        marks = self._marks.get(queue)
        if marks is None:
            while len(self._marks) >= MOST_KEPT:
                self.forget(next(iter(self._marks)))
            self._marks[queue] = [place]
        elif marks[-1].offset < place.offset:
            marks.append(place)
            if len(marks) > MOST_OF_QUEUE:
                marks[:] = _thinned(marks)

    def cut(self, queue: MessageQueue, offset: int) -> None:
        """Remove the marks from ``offset`` on, because the queue has other messages there."""
        left = [mark for mark in self._marks.get(queue, ()) if mark.offset < offset]
        if left:
            self._marks[queue] = left
        else:
            self.forget(queue)

    def doubt(self, queues: Iterable[MessageQueue]) -> None:
        """Note that queues with marks must be checked, because the store of their broker may have been replaced, or their topic may
        have been deleted.
        """
        self.doubted.update(queue for queue in queues if queue in self._marks)

    def forget(self, queue: MessageQueue) -> None:
        """Remove the marks of a queue, because its offsets no longer belong to the messages that were read."""
        self._marks.pop(queue, None)
        self._left_at.pop(queue, None)
        self.doubted.discard(queue)

    def given_up(self, queue: MessageQueue, highest: int | None, unread: int | None) -> None:
        """Note that a queue leaves this member.

        Args:
            highest: The highest offset that this member may have committed; None if there is none.
            unread: The offset to which the queue was moved back after a loss, if this member has not handled the messages there
                yet; None otherwise.
        """
        if queue in self._marks:
            self._left_at[queue] = highest
        if unread is not None:
            now = machine.monotonic()
            self._unread = {each: noted for each, noted in self._unread.items() if now - noted[1] < AWAY}
            self._unread[queue] = unread, now

    def taken_over(self, queue: MessageQueue, start: int, committed: int | None) -> int:
        """Return the offset at which this member begins in a queue that it takes over.

        This is ``start``, or a lower offset if the queue had lost messages and was away only for a moment, because the member in
        between may have begun at an offset from before the loss.

        If the queue returns with a higher committed offset, another member has read it, and its marks are removed. Otherwise, the
        marks must be checked, because the queue was not watched meanwhile. A lower committed offset may be an old one of a
        crashed broker.
        """
        left_at = self._left_at.pop(queue, committed)
        unread, noted = self._unread.pop(queue, (start, 0.0))
        if unread < start and machine.monotonic() - noted < AWAY:
            start = unread
        elif committed is not None and (left_at is None or committed > left_at):
            self.forget(queue)
        self.doubt([queue])
        return start

    async def made_anew(self, instance: ClientInstance, queue: MessageQueue) -> bool:
        """Return whether the first message of a queue shows that the queue was created again since it was read.

        Return False if the queue has no mark. The errors of the requests propagate.
        """
        marks = self._marks.get(queue)
        if not marks:
            return False
        newest = marks[-1]
        first_stored = await earliest_store_time_ms(instance, queue)
        return first_stored > newest.stored and await min_offset(instance, queue, any_replica=False) <= newest.offset


def _thinned(marks: Sequence[Place]) -> list[Place]:
    """Return the marks, except marks whose neighbours are close enough to each other (``APART``)."""
    newest, found, distance = marks[-1].offset, [marks[-1]], 1.0
    for mark, older in zip(marks[-2:0:-1], marks[-3::-1], strict=True):
        if newest - older.offset > distance * APART:
            found.append(mark)
            distance = newest - mark.offset
    return [marks[0], *reversed(found)]
