"""Lines of messages that are handled one after the other. They decide which messages of a queue the handler may be called with
next.

Messages with the same key form a line. A line rests while its first message waits for another attempt. One heap and one timer serve
all resting lines. The first message without a key is logged.
"""

# The first message of a line is ready when no other message of the line is in a call. A message that is to be handled again blocks
# its line until it is due. A message without a line is ready at once. ``add`` and ``wake`` take constant time.

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextvars import Context
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from rmq_protocol.message import MessageExt

from ... import machine
from ..held_queue import HeldQueue, Waiting
from ..subscription import Subscription

logger = logging.getLogger(__name__)

NAMED_FOR: Final = 600.0
"""Seconds for which ``health()`` reports a subscription after a message without a key."""
HOW: Final = (
    "send with Message(sharding_key=...), because key= of a send only chooses the queue, or give the subscription a function key= "
    "that returns the key of a message, or None for a message that needs no order"
)

B = TypeVar("B")
MIN_COMPACTED: Final = 64
"""Minimum number of entries above which the heap is compacted."""


class Keyless(NamedTuple):
    """The last message of a subscription that had no key.

    Attributes:
        at: Monotonic time at which it was pulled.
    """

    message: MessageExt
    at: float


class KeylessMessages:
    """Keeps the last message without a key of each subscription, and logs the first one."""

    def __init__(self) -> None:
        self._newest: dict[Subscription, Keyless] = {}

    def add(self, subscription: Subscription, message: MessageExt) -> None:
        if subscription not in self._newest:
            logger.warning(
                'message %s of %s at offset %d has no key, and its subscription has order="key"; messages of a queue without '
                "a key are handled one at a time; %s",
                message.msg_id,
                message.queue,
                message.queue_offset,
                HOW,
            )
        self._newest[subscription] = Keyless(message, machine.monotonic())

    def recent(self) -> dict[Subscription, Keyless]:
        """Return the subscriptions that had a message without a key in the last NAMED_FOR seconds. Any thread may call this."""
        since = machine.monotonic() - NAMED_FOR
        return {subscription: each for subscription, each in [*self._newest.items()] if each.at > since}


class Line:
    """Messages with the same key.

    Attributes:
        items: Messages in the order of their offsets. While the line rests, all its messages; otherwise, the messages behind the
            message that is ready or in a call.
        rests_until: Monotonic time of the next attempt of the first message; None if the line does not rest.
    """

    __slots__ = ("again", "items", "key", "rests_until")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.items: deque[Waiting] = deque()
        self.again: list[Waiting] = []
        """Messages of the current call that are to be handled again."""
        self.rests_until: float | None = None


class Lines:
    """The messages of one queue that wait for one handler, in lines by key. The caller reads the clock and passes the times.

    Attributes:
        ready: Messages whose calls may begin, in the order of their turns. After a message is removed, its line waits until
            ``ended``.
        by_key: Lines that have a message that waits or is in a call.
    """

    __slots__ = ("_behind", "by_key", "ready")

    def __init__(self) -> None:
        self.ready: deque[Waiting] = deque()
        self.by_key: dict[Hashable, Line] = {}
        self._behind = 0
        """Number of waiting messages that are not ready."""

    def __len__(self) -> int:
        """Number of waiting messages."""
        return len(self.ready) + self._behind

    def __bool__(self) -> bool:
        """Return whether a message waits, or a message with a line is in a call."""
        return bool(self.ready or self.by_key)

    def waiting(self) -> list[Waiting]:
        """Return the waiting messages, in no particular order. May be called from any thread."""
        found = [*self.ready]
        for line in [*self.by_key.values()]:
            found += line.items
            found += line.again
        return found

    def resting(self) -> list[Line]:
        """Return the resting lines. May be called from any thread."""
        return [line for line in [*self.by_key.values()] if line.rests_until is not None]

    def add(self, item: Waiting, key: Hashable | None) -> None:
        """Add a message behind all other messages with its key.

        Args:
            key: The key; None for a message without a line.
        """
        if key is None:
            self.ready.append(item)
            return
        item.key = key
        line = self.by_key.get(key)
        if line is not None:
            line.items.append(item)
            self._behind += 1
            return
        self.by_key[key] = Line(key)
        self.ready.append(item)

    def add_unordered(self, items: Sequence[Waiting]) -> None:
        """Add messages without a line."""
        self.ready.extend(items)

    def take_ready(self, count: int) -> list[Waiting]:
        """Remove and return up to ``count`` ready messages. Their lines wait until ``ended``."""
        return [self.ready.popleft() for _ in range(min(count, len(self.ready)))]

    def take_behind(self, item: Waiting, count: int, now: float) -> list[Waiting]:
        """Remove and return up to ``count`` due messages that wait behind ``item``, which has been taken. All of them share one
        call.
        """
        taken: list[Waiting] = []
        if item.key is not None:
            behind = self.by_key[item.key].items
            while behind and len(taken) < count and behind[0].due <= now:
                taken.append(behind.popleft())
        self._behind -= len(taken)
        return taken

    def put_back(self, item: Waiting) -> None:
        """Put back a message of a call that is to be handled again.

        The message waits in its line until ``ended``. A message without a line is ready at once, before messages with higher
        offsets.
        """
        if item.key is not None:
            self.by_key[item.key].again.append(item)
            self._behind += 1
            return
        ready, offset, place = self.ready, item.message.queue_offset, 0
        while place < len(ready) and ready[place].message.queue_offset < offset:
            place += 1
        ready.insert(place, item)

    def ended(self, items: Iterable[Waiting], now: float) -> list[Line]:
        """End a call with ``items``, so that their lines continue.

        Returns:
            The lines that rest from now on.
        """
        resting = []
        for key in dict.fromkeys([item.key for item in items if item.key is not None]):
            line = self.by_key[key]
            if line.again:
                line.again.sort(key=_offset)
                line.items.extendleft(reversed(line.again))
                line.again.clear()
            if not line.items:
                del self.by_key[key]
            elif (due := line.items[0].due) > now:
                line.rests_until = due
                resting.append(line)
            else:
                self.ready.append(line.items.popleft())
                self._behind -= 1
        return resting

    def wake(self, line: Line) -> None:
        """Let a resting line continue. Its first message becomes ready, before other ready messages."""
        line.rests_until = None
        self.ready.appendleft(line.items.popleft())
        self._behind -= 1

    def drop(self, above: int, *, failed: bool = False, key: Hashable | None = None) -> list[Waiting]:
        """Remove and return waiting messages with offsets above ``above``.

        Only messages at the end of each line are removed, so that the order is kept when they are added again.

        Args:
            failed: Whether to drop messages that wait for another attempt, too.
            key: The key of the messages to drop; None for all messages.
        """

        def may_go(item: Waiting) -> bool:
            chosen = key is None or item.key == key
            return chosen and item.message.queue_offset > above and (failed or item.held_since is None)

        dropped = [item for item in self.ready if item.key is None and may_go(item)]
        heads = {item.key: item for item in self.ready if item.key is not None}
        for line in [*self.by_key.values()]:
            dropped += self._drop_last(line, heads.get(line.key), may_go)
        gone = set(dropped)
        self.ready = deque([item for item in self.ready if item not in gone])
        self._behind = sum(len(line.items) + len(line.again) for line in self.by_key.values())
        return dropped

    def _drop_last(self, line: Line, head: Waiting | None, may_go: Callable[[Waiting], bool]) -> list[Waiting]:
        """Remove and return messages from the end of a line, as long as ``may_go`` allows it.

        Args:
            head: The ready message of the line, or None.
        """
        dropped: list[Waiting] = []
        while line.items and may_go(line.items[-1]):
            dropped.append(line.items.pop())
        if line.items:
            return dropped
        dropped += filter(may_go, line.again)
        line.again = [item for item in line.again if not may_go(item)]
        if head is not None and may_go(head):
            dropped.append(head)
            del self.by_key[line.key]
        elif line.rests_until is not None:
            line.rests_until = None
            del self.by_key[line.key]
        return dropped

    def remove(self, items: Collection[Waiting]) -> list[Waiting]:
        """Remove and return the ``items`` that wait. They must be messages without a line."""
        removed = [item for item in self.ready if item in items]
        self.ready = deque([item for item in self.ready if item not in items])
        return removed

    def drop_line(self, line: Line) -> list[Waiting]:
        """Remove a resting line, and return its messages."""
        dropped = [*line.items]
        line.items.clear()
        line.rests_until = None
        del self.by_key[line.key]
        self._behind -= len(dropped)
        return dropped


def _offset(item: Waiting) -> int:
    return item.message.queue_offset


class Rests(Generic[B]):
    """Wakes resting lines when their first message is due.

    Args:
        rested: Called with the arguments of ``add`` when a line is due, unless the line has been dropped.
    """

    __slots__ = ("_at", "_compacted_at", "_count", "_entries", "_loop", "_rested", "_timer")

    def __init__(self, rested: Callable[[B, HeldQueue, Line], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._rested = rested
        self._entries: list[tuple[float, int, B, HeldQueue, Line]] = []
        """A heap by due time. The number makes entries unique, so lines are never compared. The entry of a dropped line stays until
        it is due or the heap is compacted."""
        self._count = 0
        self._compacted_at = MIN_COMPACTED
        self._at = inf
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Number of entries, including entries of dropped lines that are not due yet."""
        return len(self._entries)

    def add(self, backlog: B, held: HeldQueue, line: Line) -> None:
        """Add a resting line."""
        due = line.rests_until
        assert due is not None
        self._count += 1
        heappush(self._entries, (due, self._count, backlog, held, line))
        if len(self._entries) > self._compacted_at:
            self._entries = [entry for entry in self._entries if entry[4].rests_until == entry[0]]
            heapify(self._entries)
            self._compacted_at = max(MIN_COMPACTED, 2 * len(self._entries))
        if due < self._at:
            self._arm(due)

    def close(self) -> None:
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_later(max(at - machine.monotonic(), 0.0), self._due, context=Context())

    def _due(self) -> None:
        self._timer, self._at = None, inf
        now = machine.monotonic()
        while self._entries and self._entries[0][0] <= now:
            due, _, backlog, held, line = heappop(self._entries)
            if line.rests_until == due:
                self._rested(backlog, held, line)
        if self._entries and self._timer is None:
            self._arm(self._entries[0][0])
