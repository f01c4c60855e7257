"""Check points. A check point lists messages of one queue that were popped and are not yet acknowledged, and the end of their
invisible time.

A real broker writes check points and acks to a log, or keeps a record per message in a key-value store
(``popConsumerKVServiceEnable``). The two stores differ in how an ack finds its check point. ``CheckPoints`` supports both.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final, NamedTuple

MAX_IN_FLIGHT: Final = 200_000
"""Maximum number of messages in the check points of one broker."""
_SWEEP_FROM: Final = 1024

_Key = tuple[str, str, int, int, int]


class Handle(NamedTuple):
    """The handle of a popped message. It identifies the pop, or the last change of the message's invisible time.

    ``pop_time`` and ``end`` are in epoch ms, ``invisible_time`` is in ms.

    Attributes:
        start: Queue offset at which the pop began to read. After a change of the invisible time, it is the offset of the
            message.
    """

    group: str
    topic: str
    queue_id: int
    start: int
    pop_time: int
    invisible_time: int

    @property
    def end(self) -> int:
        return self.pop_time + self.invisible_time


class CheckPoint:
    """Messages of one queue with the same end of their invisible time.

    Args:
        suspended: True if the next delivery does not count as an attempt.

    Attributes:
        left: Queue offsets without an ack.
    """

    __slots__ = ("handle", "left", "suspended")

    def __init__(self, handle: Handle, offsets: Iterable[int], *, suspended: bool = False) -> None:
        self.handle = handle
        self.left = list(offsets)
        self.suspended = suspended


class CheckPoints:
    """The check points of a broker.

    Args:
        single: Whether each message has its own check point, as in the key-value store. If False, the messages that one pop
            takes from one queue share a check point.

    Attributes:
        messages: Number of messages without an ack.
    """

    def __init__(self, *, single: bool = False) -> None:
        self.single = single
        self.messages = 0
        self._points: dict[_Key, CheckPoint] = {}
        self._ends: list[tuple[int, int, CheckPoint]] = []
        """A heap ordered by end. It may contain check points without messages."""
        self._numbers = count()

    @property
    def kept(self) -> int:
        """Number of check points in memory, including those without messages."""
        return len(self._ends)

    def add(self, handle: Handle, offsets: Iterable[int], *, suspended: bool = False) -> None:
        """Add check points for messages of one queue that were popped, or whose invisible time was changed."""
        groups = [[offset] for offset in offsets] if self.single else [list(offsets)]
        for each in groups:
            self._put(CheckPoint(handle, each, suspended=suspended))

    def ack(self, handle: Handle, offset: int) -> bool:
        """Remove one message from its check point. Return whether there was such a message."""
        key = self._key(handle, offset)
        point = self._points.get(key)
        if point is None or offset not in point.left:
            return False
        point.left.remove(offset)
        self.messages -= 1
        if not point.left:
            del self._points[key]
        return True

    def take(self, until: int, most: int) -> list[CheckPoint]:
        """Remove and return at most ``most`` check points that end no later than ``until`` (epoch ms), soonest first."""
        due: list[CheckPoint] = []
        while self._ends and self._ends[0][0] <= until and len(due) < most:
            _, _, point = heapq.heappop(self._ends)
            if self._remove(point):
                due.append(point)
        return due

    def next_end(self) -> int | None:
        """Return the time, in epoch ms, at which the next check point ends. Return None if there are no check points."""
        while self._ends and not self._ends[0][2].left:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def of_group(self, group: str) -> list[tuple[Handle, int]]:
        """Return the handle and the queue offset of each message in the group's check points, in the order in which the check
        points were added.
        """
        points = sorted(self._ends, key=lambda entry: entry[1])
        return [(point.handle, offset) for _, _, point in points if point.handle.group == group for offset in point.left]

    def forget(self, gone: Callable[[Handle, int], bool]) -> None:
        """Remove each message for which ``gone(handle, queue offset)`` is true."""
        for key, point in list(self._points.items()):
            left = [offset for offset in point.left if not gone(point.handle, offset)]
            self.messages -= len(point.left) - len(left)
            point.left[:] = left
            if not left:
                del self._points[key]
        self._sweep(0)

    def _put(self, point: CheckPoint) -> None:
        if not point.left:
            return
        key = self._key(point.handle, point.left[0])
        old = self._points.get(key)
        if old is not None:  # same key as a pop in the same millisecond: a real broker also loses one of the two
            self._remove(old)
            old.left.clear()
        self._points[key] = point
        self.messages += len(point.left)
        heapq.heappush(self._ends, (point.handle.end, next(self._numbers), point))
        self._sweep(_SWEEP_FROM)

    def _remove(self, point: CheckPoint) -> bool:
        """Remove a check point from the table. Return whether the table contained it."""
        if not point.left:
            return False
        key = self._key(point.handle, point.left[0])
        if self._points.get(key) is not point:
            return False
        del self._points[key]
        self.messages -= len(point.left)
        return True

    def _key(self, handle: Handle, offset: int) -> _Key:
        group, topic, queue_id, start, pop_time, _ = handle
        if self.single:
            return (group, topic, queue_id, offset, handle.end)
        return (group, topic, queue_id, start, pop_time)

    def _sweep(self, slack: int) -> None:
        if len(self._ends) > slack + 2 * len(self._points):
            self._ends = [entry for entry in self._ends if entry[2].left]
            heapq.heapify(self._ends)
