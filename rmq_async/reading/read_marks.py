"""The places of messages that this member has read, by which it sees that a queue has lost messages or was created again."""

# Brokers do not report that: a broker whose store was replaced by an older one, a replica that lacked messages and became the
# master, and a topic that was deleted and created again give offsets out anew, and a member that goes on at its old offset would
# leave messages out. So each queue has marks: the newest one shows whether the queue still has what was read; if not, older
# ones show up to where it has. They lie close together near the newest and far apart behind it. A queue that was read to its
# end when this member took it has the message before its start as its first mark.
#
# Messages are stored in the order of their offsets. So a queue was created again if its first message was stored after one that
# was read at the same offset or a higher one. Marks are void once another member has read the queue, because that member may
# have gone back in it already.
#
# A broker that starts lists the members of a group one by one. So a queue whose messages are lost may be for a moment with a member
# that knows nothing of the loss, and begins behind the first of the new messages. The member that has gone back in it remembers
# where to.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rmq_protocol.message import MessageExt, MessageQueue

from .. import machine
from ..client import ClientInstance, earliest_store_time_ms, min_offset
from .looks import Place, place_of

UNWATCHED: Final = 5.0
"""Seconds between an answer and the next pull after which a queue is looked at: it may have been created again meanwhile."""
AWAY: Final = 60.0
"""Seconds within which a queue returns that a broker has taken from its member because it lists the members one by one."""
REACH: Final = 16_384
"""Offsets without a message after which a look adds a mark, where a filter leaves messages out."""
MOST_KEPT: Final = 16_384
MOST_OF_QUEUE: Final = 48
APART: Final = 2.0
"""Maximum ratio of a mark's distance from the newest mark to the distance of the next newer mark."""


class ReadMarks:
    """The marks of up to MOST_KEPT queues, up to MOST_OF_QUEUE of each.

    Attributes:
        doubted: Queues to check before the next answer of a pull is used.
    """

    __slots__ = ("_left_at", "_marks", "_unread", "doubted")

    def __init__(self) -> None:
        self._marks: dict[MessageQueue, list[Place]] = {}
        """The marks of each queue, lowest first."""
        self._left_at: dict[MessageQueue, int | None] = {}
        """The highest offset, of queues that were given up, that brokers may have from this member."""
        self._unread: dict[MessageQueue, tuple[int, float]] = {}
        """Queues that have left this member before it had handled what they have in place of lost messages: the offset of that, and
        the monotonic time, for AWAY seconds."""
        self.doubted: set[MessageQueue] = set()

    def __contains__(self, queue: object) -> bool:
        return queue in self._marks

    def of(self, queue: MessageQueue) -> Sequence[Place]:
        """Return the marks of a queue, lowest first."""
        return tuple(self._marks.get(queue, ()))

    def newest(self, queue: MessageQueue) -> int:
        """Return the offset of the newest mark of a queue; -1 if there is none."""
        marks = self._marks.get(queue)
        return marks[-1].offset if marks else -1

    def read(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Note the messages of an answer, at least one, in the order of their offsets."""
        if queue not in self._marks:
            self.add(queue, place_of(messages[0]))
        self.add(queue, place_of(messages[-1]))

    def add(self, queue: MessageQueue, place: Place) -> None:
        """Note one message; one below the newest mark is ignored."""
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
        """Remove the marks from ``offset`` on: the queue has other messages there."""
        left = [mark for mark in self._marks.get(queue, ()) if mark.offset < offset]
        if left:
            self._marks[queue] = left
        else:
            self.forget(queue)

    def doubt(self, queues: Iterable[MessageQueue]) -> None:
        """Note that queues with marks must be checked: their broker may have another store, or their topic may have been
        deleted.
        """
        self.doubted.update(queue for queue in queues if queue in self._marks)

    def forget(self, queue: MessageQueue) -> None:
        """Remove the marks of a queue: its offsets no longer belong to the messages that were read."""
        self._marks.pop(queue, None)
        self._left_at.pop(queue, None)
        self.doubted.discard(queue)

    def given_up(self, queue: MessageQueue, highest: int | None, unread: int | None) -> None:
        """Note the highest offset that brokers may have from this member, in a queue with marks that leaves it.

        Args:
            unread: The offset to which the queue has gone back after a loss, if this member has not handled what is stored
                there; else None.
        """
        if queue in self._marks:
            self._left_at[queue] = highest
        if unread is not None:
            now = machine.monotonic()
            self._unread = {each: noted for each, noted in self._unread.items() if now - noted[1] < AWAY}
            self._unread[queue] = unread, now

    def taken_over(self, queue: MessageQueue, start: int, committed: int | None) -> int:
        """Return the offset at which this member takes a queue over: ``start``, or a lower one if the queue was away for a
        moment and has lost messages before: the member in between may have begun at an offset from before the loss.

        Remove the marks of a queue that returns with a higher committed offset: another member has read it. Other marks are
        doubted, since the queue was not watched meanwhile. A lower one may be old, of a broker that has crashed.
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
        """Return whether the first message of a queue shows that the queue was created again since it was read; False without a
        mark. Raise the errors of the requests.
        """
        marks = self._marks.get(queue)
        if not marks:
            return False
        newest = marks[-1]
        first_stored = await earliest_store_time_ms(instance, queue)
        return first_stored > newest.stored and await min_offset(instance, queue, any_replica=False) <= newest.offset


def _thinned(marks: Sequence[Place]) -> list[Place]:
    """Return the marks without marks whose neighbours are not too far APART."""
    newest, found, distance = marks[-1].offset, [marks[-1]], 1.0
    for mark, older in zip(marks[-2:0:-1], marks[-3::-1], strict=True):
        if newest - older.offset > distance * APART:
            found.append(mark)
            distance = newest - mark.offset
    return [marks[0], *reversed(found)]
