"""Where messages gather, and the place of a topic whose queues take turns; that of a queue is in ``in_order``.

A gathering decides what leaves and when; the batcher puts it on its way. What it costs per message is ``add_plain``: a tuple, an
append, three comparisons. Everything else is per batch.

What one iteration of the loop gathers is shared out over the requests that may be under way, in parts of at least ``SHARE``
messages: while the broker works on one, the client makes the next. (One part for all of them: client and broker take turns, and
1024 in flight make a fifth less.)
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_protocol.message import Message

from ...errors import RequestTimeoutError
from ...transport import Receiver
from ..lanes import Lane, Target
from ..outgoing import Outgoing
from ..replies import stored_batch, stored_message

if TYPE_CHECKING:
    from .batcher import Batcher

__all__ = ["Entry", "Gathering", "InTurn", "Member", "Request", "alive", "replace", "shares"]

SHARE: Final = 64

Member = tuple[Receiver, Any, float]
"""Who waits, what is sent (a Message, or an Outgoing where order counts), and the end of the caller's budget (monotonic)."""


class Request(NamedTuple):
    """``read``: makes the result of a reply."""

    outgoing: Outgoing
    read: Any


class Entry(NamedTuple):
    """What one request carries.

    ``plain``: messages that say nothing but topic and body, under the producer's own time-out. ``ids``: where Messages have theirs
    already. ``read``: of what goes alone. ``turn``: it carries nothing, its member does something itself.
    """

    members: list[Member]
    plain: bool = False
    ids: tuple[str, ...] | None = None
    read: Any = None
    turn: bool = False


def shares(number: int, free: int) -> int:
    """How many messages each of the requests gets into which ``number`` are shared out; ``free``: how many there may be."""
    requests = max(1, min(free, number // SHARE))
    return -(-number // requests)


class Gathering(ABC):
    """``due``: what is here leaves by itself. ``stale``: some of those who wait do so no longer. ``timer``: of the lingering.

    ``in_order``: what leaves keeps its order, so a request is under way until it is answered or its time is over.
    """

    in_order = False

    __slots__ = ("_batcher", "_leaving", "_left", "_most", "_plain", "_sealed", "due", "members", "stale", "timer")

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher
        self._left = batcher.max_bytes
        self._most = batcher.max_messages
        self._plain = True
        self._sealed: deque[Entry] = deque()
        """Complete, and not gone yet."""
        self._leaving = False
        self.members: list[Member] = []
        self.due = False
        self.stale = False
        self.timer: asyncio.TimerHandle | None = None

    def add_plain(self, receiver: Receiver, message: Message, size: int, deadline: float) -> None:
        """As ``add``, for a message that says nothing but topic and body, under the producer's own time-out.

        So those that come later have later deadlines, and only the first of an iteration can be the earliest of all.
        """
        left, members = self._left - size, self.members
        if left < 0 or len(members) >= self._most:
            self.full()
            left, members = self._left - size, self.members
        self._left = left
        members.append((receiver, message, deadline))
        if not self.due:
            self.due = True
            self._batcher.soon(self, deadline)

    def _add(self, receiver: Receiver, message: Message | Outgoing, size: int, deadline: float) -> None:
        left = self._left - size
        if left < 0 or len(self.members) >= self._most:
            self.full()
            left = self._left - size
        self._left = left
        self._plain = False
        self.members.append((receiver, message, deadline))
        if self.due:
            self._wake(deadline)
        else:
            self.due = True
            self._batcher.soon(self, deadline)

    def _wake(self, deadline: float) -> None:
        if not self.due:
            self.due = True
            self._batcher.soon(self, deadline)
            return
        self._batcher.look_at(deadline)
        if self.timer is not None:
            self._batcher.sooner(self, deadline)

    @abstractmethod
    def full(self) -> None:
        """No further message fits in."""

    def leave(self) -> None:
        """Lets go what there is, as far as it may go now."""
        self.due = False
        if self.timer is not None:
            self._linger_no_longer()
        if self._leaving:  # what goes may fail at once and be over
            return
        self._leaving = True
        try:
            self._leave()
        finally:
            self._leaving = False

    @abstractmethod
    def _leave(self) -> None: ...

    def _linger_no_longer(self) -> None:
        self.due = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def left(self) -> None:
        """A caller waits no longer: it was cancelled, or has failed."""
        self.stale = True
        self._batcher.look_after(self)

    def can_shrink(self, outgoing: Outgoing) -> bool:
        """Whether messages may leave a request of which no attempt has begun."""
        return True

    @abstractmethod
    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        """Makes the batch, where it is, one of what is left in the entry."""

    @abstractmethod
    def ended(self, broker: str) -> None:
        """A request that went to ``broker`` is over."""

    @abstractmethod
    def again(self, entries: Sequence[Entry]) -> None:
        """Sends what came back, before all others."""

    @abstractmethod
    def request(self, entry: Entry, target: Target) -> tuple[Entry, Request | None]:
        """What the first attempt sends, None where that is nothing; and those of the entry whose messages are in it."""

    @abstractmethod
    def not_sent(self) -> RequestTimeoutError:
        """The error of a message that is still here when its time is over."""

    def take(self) -> Entry:
        """What has gathered, without those who wait no longer; it is gone from here."""
        members, self.members, self._left = self.members, [], self._batcher.max_bytes
        plain, self._plain = self._plain, True
        if self.stale:
            self.stale = False
            members = [member for member in members if not member[0].done()]
        return Entry(members, plain)

    def waiting(self) -> list[list[Member]]:
        """All that has not gone."""
        return [self.members, *[entry.members for entry in self._sealed]]

    def drop(self) -> list[Member]:
        """Everything that has not gone; it is gone from here, and will not leave."""
        members = [member for each in self.waiting() for member in each if not member[0].done()]
        self._sealed.clear()
        self.take()
        self._linger_no_longer()
        return members


class InTurn(Gathering):
    """Of one topic (and ``wait_store``): each request goes to the next queue, some to each broker at a time.

    Messages are encoded when they leave, all that a request carries together.
    """

    __slots__ = ("__weakref__", "_under_way", "topic")

    def __init__(self, batcher: Batcher, topic: str) -> None:
        super().__init__(batcher)
        self.topic = topic
        self._under_way: dict[str, int] = {}
        """Requests by broker."""

    def add(self, receiver: Receiver, message: Message, size: int, deadline: float) -> None:
        """``size``: bytes that the message takes in a batch, of which one takes at most ``max_bytes``."""
        self._add(receiver, message, size, deadline)

    def full(self) -> None:
        entry = self.take()
        if entry.members:
            self.again([entry])

    def _leave(self) -> None:
        while self._sealed:
            if (lane := self._batcher.lane(self)) is None:
                return  # comes here again when there is one
            if (entry := alive(self._sealed.popleft())) is not None:
                self._go(entry, lane)
        if not self.members or (lane := self._batcher.lane(self)) is None:
            return
        free = self._free(lane)
        if free <= 0:
            return
        entry = self.take()
        number = len(entry.members)
        if number < 2 * SHARE or free == 1:
            if number:
                self._go(entry, lane)
            return
        share = shares(number, free)
        for start in range(0, number, share):
            self._go(Entry(entry.members[start : start + share], entry.plain), lane)

    def again(self, entries: Sequence[Entry]) -> None:
        lane = self._batcher.lane(self)
        for entry in entries:
            if lane is None:
                self._sealed.append(entry)
            else:
                self._go(entry, lane)

    def request(self, entry: Entry, target: Target) -> tuple[Entry, Request | None]:
        messages = [member[1] for member in entry.members]
        outgoing = self._batcher.encoder.encode_gathered(messages, entry.ids, plain=entry.plain)
        outgoing.message = messages[0]
        read = stored_message if outgoing.batch_ids is None else stored_batch
        self._batcher.show(outgoing, messages, read)
        return entry, Request(outgoing, read)

    def can_shrink(self, outgoing: Outgoing) -> bool:
        return outgoing.watch is None  # hooks have seen the whole batch

    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        messages = [member[1] for member in entry.members]
        replace(outgoing, self._batcher.encoder.batch_of(messages, entry.ids, plain=entry.plain))

    def ended(self, broker: str) -> None:
        self._under_way[broker] -= 1
        if not self.due:
            self.leave()

    def not_sent(self) -> RequestTimeoutError:
        if self._batcher.is_finding(self):
            why = "the route of the topic was not found in time"
        else:
            why = "it waited in the client for answers to earlier messages until its time was over"
        return RequestTimeoutError(f"the message for topic {self.topic} was not sent: {why}", maybe_stored=False)

    def _go(self, entry: Entry, lane: Lane) -> None:
        target = lane.next()
        if len(lane.brokers) > 1 and self._under_way.get(target.broker, 0) >= self._batcher.lanes_per_broker:
            target = self._elsewhere(lane, target)
        self._under_way[target.broker] = self._under_way.get(target.broker, 0) + 1
        self._batcher.go(self, entry, lane, target, fixed=False)

    def _free(self, lane: Lane) -> int:
        """How many requests more may be under way."""
        limit, under_way = self._batcher.lanes_per_broker, self._under_way
        if len(lane.brokers) == 1:
            return limit - under_way.get(next(iter(lane.brokers)), 0)
        return sum([max(0, limit - under_way.get(broker, 0)) for broker in self._batcher.inviting(lane)])

    def _elsewhere(self, lane: Lane, target: Target) -> Target:
        """A queue of a broker that has less to do, if there is one."""
        limit = self._batcher.lanes_per_broker
        free = [broker for broker in self._batcher.inviting(lane) if self._under_way.get(broker, 0) < limit]
        return self._batcher.next_of(lane, free) if free else target


def replace(outgoing: Outgoing, other: Outgoing) -> None:
    """Gives the batch the messages of another one."""
    outgoing.unique_id, outgoing.properties, outgoing.body = other.unique_id, other.properties, other.body
    outgoing.batch_ids = other.batch_ids


def alive(entry: Entry) -> Entry | None:
    """The entry without those who wait no longer; None where that is everybody."""
    left = [index for index, member in enumerate(entry.members) if not member[0].done()]
    if not left or len(left) == len(entry.members):
        return entry if left else None
    ids = None if entry.ids is None else tuple([entry.ids[index] for index in left])
    return entry._replace(members=[entry.members[index] for index in left], ids=ids)
