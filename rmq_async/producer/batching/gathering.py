"""Gatherings: the messages that wait to leave as a batch, for a topic here and for one queue in ``queue_gathering``.

A gathering decides what leaves and when; the batcher sends it.

What a topic has gathered is divided among the requests that may be in flight, in parts of about ``SHARE`` messages or more: the
client encodes one part while the broker stores another.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

import msgspec

from rmq_protocol.message import Message

from ...errors import RequestTimeoutError
from ...transport import Receiver
from ..encoding import BatchItem, Encoder, Outgoing, stored_batch, stored_message
from ..routing import Target, TopicQueues

__all__ = ["Batches", "Entry", "Gathering", "Member", "Request", "TopicGathering", "alive", "replace", "shares"]

SHARE: Final = 64

Member = tuple[Receiver, Any, float]
"""Receiver of the result, the message (a ``BatchItem``), and the caller's deadline (monotonic)."""


class Request(msgspec.Struct, frozen=True):
    """The encoded messages of one request. ``read``: makes the result from a response."""

    outgoing: Outgoing
    read: Any


class Entry(msgspec.Struct, frozen=True):
    """Messages that leave together, as one request.

    ``plain``: all have only a topic and a body, and the producer's timeout. ``ids``: the unique ids of the messages, if they
    have been encoded before. ``read``: makes the result of a request that is not batched. ``turn``: the entry is only a turn in
    the queue's order: the caller sends by itself.
    """

    members: list[Member]
    plain: bool = False
    ids: tuple[str, ...] | None = None
    read: Any = None
    turn: bool = False


class Batches(Protocol):
    """The operations that gatherings need of ``batcher.Batcher``, which knows routes, time and connections.

    ``queues_by_topic``: current queues by topic. ``linger``: seconds. ``alarm``: time of the next check of deadlines.
    """

    encoder: Encoder
    max_bytes: int
    max_messages: int
    lanes_per_broker: int
    queues_by_topic: dict[str, TopicQueues]
    linger: float
    alarm: float

    def watch_until(self, deadline: float) -> None:
        """Sets the timer to check the callers' deadlines at ``deadline``."""

    def soon(self, gathering: Gathering, deadline: float) -> None:
        """Schedules the departure: by ``call_soon``, or after lingering."""

    def sooner(self, gathering: Gathering, deadline: float) -> None:
        """Moves the departure of lingering messages forward if a message that joined has less time."""

    def hasten(self, gathering: Gathering) -> None:
        """Schedules the departure of lingering messages, because a batch is complete."""

    def look_at(self, time: float) -> None:
        """Schedules a check of all callers' deadlines at ``time`` (monotonic), unless one is scheduled by then."""

    def look_after(self, gathering: Gathering) -> None:
        """Schedules the end of requests that no caller waits for."""

    def topic_queues(self, gathering: TopicGathering) -> TopicQueues | None:
        """Returns the topic's queues, or None while the route is looked up."""

    def by_now(self, topic: str, topic_queues: TopicQueues, target: Target) -> tuple[TopicQueues, Target]:
        """Returns the topic's current queues and the target in them; the given ones if they lack the queue."""

    def inviting(self, topic_queues: TopicQueues) -> Collection[str]:
        """Returns the topic's brokers that are not avoided, or all if every one is."""

    def next_of(self, topic_queues: TopicQueues, brokers: Collection[str]) -> Target:
        """Returns the next queue of these brokers."""

    def is_connected(self, target: Target) -> bool:
        """Returns whether there is a connection to the target."""

    def is_finding(self, gathering: TopicGathering) -> bool:
        """Returns whether the look-up of the topic's route is in progress."""

    def show(self, outgoing: Outgoing, messages: Sequence[Message], read: Any) -> None:
        """Lets hooks see the attempts of a batch."""

    def go(self, gathering: Gathering, entry: Entry, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> None:
        """Sends an entry as one request; splits a batch that cannot be encoded."""

    def forget(self, gathering: Any) -> None:
        """Removes an empty gathering."""


def shares(number: int, free: int) -> int:
    """Returns the maximum of messages per request when ``number`` messages are divided among at most ``free`` requests."""
    requests = max(1, min(free, number // SHARE))
    return -(-number // requests)


class Gathering(ABC):
    """Messages that wait to leave as a batch.

    ``due``: a departure is scheduled. ``stale``: some callers may have stopped waiting. ``timer``: ends the lingering.
    ``in_order``: messages keep their order, so a request counts as in flight until it has ended.
    """

    in_order = False

    __slots__ = ("_batcher", "_leaving", "_left", "_most", "_plain", "_sealed", "due", "members", "stale", "timer")

    def __init__(self, batcher: Batches) -> None:
        self._batcher = batcher
        self._left = batcher.max_bytes
        self._most = batcher.max_messages
        self._plain = True
        self._sealed: deque[Entry] = deque()  # complete batches that have not left yet
        self._leaving = False
        self.members: list[Member] = []
        self.due = False
        self.stale = False
        self.timer: asyncio.TimerHandle | None = None

    def add_plain(self, receiver: Receiver, message: BatchItem, size: int, deadline: float, *, plain: bool = True) -> None:
        """Adds a message with the producer's timeout. ``plain``: it has only a topic and a body.

        Later messages have later deadlines, so only the first one of an iteration needs a check against the timer.
        """
        left, members = self._left - size, self.members
        if left < 0 or len(members) >= self._most:
            self.full()
            left, members = self._left - size, self.members
        self._left = left
        if not plain:
            self._plain = False
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
        """Completes the current batch: later messages go into a new one."""

    def leave(self) -> None:
        """Sends the gathered messages, as far as the limits on requests in flight allow."""
        self.due = False
        if self.timer is not None:
            self._linger_no_longer()
        if self._leaving:  # a request that fails at once ends inside ``_leave`` and calls this again
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
        """Marks that a caller's receiver is done (cancelled or failed): its message is dropped when the batch is built, and a
        request that no caller waits for is ended."""
        self.stale = True
        self._batcher.look_after(self)

    def can_shrink(self, outgoing: Outgoing) -> bool:
        """Returns whether messages may be removed from a request before its first attempt."""
        return True

    @abstractmethod
    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        """Rebuilds the batch in place from the messages that remain in the entry."""

    @abstractmethod
    def ended(self, broker: str) -> None:
        """Records the end of a request to ``broker``, which makes room for waiting messages."""

    @abstractmethod
    def again(self, entries: Sequence[Entry]) -> None:
        """Sends these entries, or lets them wait for a route; those of a queue wait before its other messages."""

    @abstractmethod
    def request(self, entry: Entry, target: Target) -> tuple[Entry, Request | None]:
        """Returns the entry and its request; None for the request if hooks refused all messages of the batch."""

    @abstractmethod
    def not_sent(self) -> RequestTimeoutError:
        """Returns the error for a message that has not left when its deadline is over."""

    def take(self) -> Entry:
        """Removes and returns the current batch; if ``stale``, without members whose callers have stopped waiting."""
        members, self.members, self._left = self.members, [], self._batcher.max_bytes
        plain, self._plain = self._plain, True
        if self.stale:
            self.stale = False
            members = [member for member in members if not member[0].done()]
        return Entry(members, plain)

    def waiting(self) -> list[list[Member]]:
        """Returns the members of all batches that have not left."""
        return [self.members, *[entry.members for entry in self._sealed]]

    def drop(self) -> list[Member]:
        """Removes all members that have not left, and returns those whose callers still wait; none of them will be sent."""
        members = [member for each in self.waiting() for member in each if not member[0].done()]
        self._sealed.clear()
        self.take()
        self._linger_no_longer()
        return members


class TopicGathering(Gathering):
    """Messages of one topic and ``wait_store``: each request goes to the next queue, with a limit per broker."""

    __slots__ = ("__weakref__", "_under_way", "topic")

    def __init__(self, batcher: Batches, topic: str) -> None:
        super().__init__(batcher)
        self.topic = topic
        self._under_way: dict[str, int] = {}  # requests in flight by broker

    def add(self, receiver: Receiver, message: Message, size: int, deadline: float) -> None:
        """Adds a message. ``size``: its bytes in a batch; a batch takes at most ``max_bytes``."""
        self._add(receiver, message, size, deadline)

    def full(self) -> None:
        entry = self.take()
        if entry.members:
            self.again([entry])

    def _leave(self) -> None:
        while self._sealed:
            if (topic_queues := self._batcher.topic_queues(self)) is None:
                return  # called again when the look-up has ended
            if (entry := alive(self._sealed.popleft())) is not None:
                self._go(entry, topic_queues)
        if not self.members or (topic_queues := self._batcher.topic_queues(self)) is None:
            return
        free = self._free(topic_queues)
        if free <= 0:
            return
        entry = self.take()
        number = len(entry.members)
        if number < 2 * SHARE or free == 1:
            if number:
                self._go(entry, topic_queues)
            return
        share = shares(number, free)
        for start in range(0, number, share):
            self._go(Entry(entry.members[start : start + share], entry.plain), topic_queues)

    def again(self, entries: Sequence[Entry]) -> None:
        topic_queues = self._batcher.topic_queues(self)
        for entry in entries:
            if topic_queues is None:
                self._sealed.append(entry)
            else:
                self._go(entry, topic_queues)

    def request(self, entry: Entry, target: Target) -> tuple[Entry, Request | None]:
        messages = [member[1] for member in entry.members]
        outgoing = self._batcher.encoder.encode_gathered(messages, entry.ids, plain=entry.plain)
        first = messages[0]
        if outgoing.message is None and first.__class__ is not Outgoing:
            outgoing.message = first[0] if first.__class__ is tuple else first
        read = stored_message if outgoing.batch_ids is None else stored_batch
        self._batcher.show(outgoing, messages, read)
        return entry, Request(outgoing, read)

    def can_shrink(self, outgoing: Outgoing) -> bool:
        return outgoing.watch is None  # hooks saw the whole batch

    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        messages = [member[1] for member in entry.members]
        replace(outgoing, self._batcher.encoder.batch_of(messages, entry.ids, plain=entry.plain))

    def ended(self, broker: str) -> None:
        self._under_way[broker] -= 1
        if not self.due:
            self.leave()

    def not_sent(self) -> RequestTimeoutError:
        if self._batcher.is_finding(self):
            why = "the route of the topic was not found in time; use a longer timeout"
        else:
            why = "it waited in the client for earlier messages until its timeout; send fewer at a time, or use a longer one"
        return RequestTimeoutError(f"the message for topic {self.topic} was not sent: {why}", maybe_stored=False)

    def _go(self, entry: Entry, topic_queues: TopicQueues) -> None:
        target = topic_queues.next()
        if len(topic_queues.brokers) > 1 and self._under_way.get(target.broker, 0) >= self._batcher.lanes_per_broker:
            target = self._elsewhere(topic_queues, target)
        self._under_way[target.broker] = self._under_way.get(target.broker, 0) + 1
        self._batcher.go(self, entry, topic_queues, target, fixed=False)

    def _free(self, topic_queues: TopicQueues) -> int:
        """Returns the number of further requests that may be in flight; 0 or less for none."""
        limit, under_way = self._batcher.lanes_per_broker, self._under_way
        if len(topic_queues.brokers) == 1:
            return limit - under_way.get(next(iter(topic_queues.brokers)), 0)
        return sum([max(0, limit - under_way.get(broker, 0)) for broker in self._batcher.inviting(topic_queues)])

    def _elsewhere(self, topic_queues: TopicQueues, target: Target) -> Target:
        """Returns the next queue of a broker below its limit, or ``target`` if there is none."""
        limit = self._batcher.lanes_per_broker
        free = [broker for broker in self._batcher.inviting(topic_queues) if self._under_way.get(broker, 0) < limit]
        return self._batcher.next_of(topic_queues, free) if free else target


def replace(outgoing: Outgoing, other: Outgoing) -> None:
    """Replaces the messages of ``outgoing`` by those of ``other``."""
    outgoing.unique_id, outgoing.properties, outgoing.body = other.unique_id, other.properties, other.body
    outgoing.batch_ids = other.batch_ids


def alive(entry: Entry) -> Entry | None:
    """Returns the entry without members whose callers have stopped waiting; None if no member is left."""
    left = [index for index, member in enumerate(entry.members) if not member[0].done()]
    if not left or len(left) == len(entry.members):
        return entry if left else None
    ids = None if entry.ids is None else tuple([entry.ids[index] for index in left])
    return msgspec.structs.replace(entry, members=[entry.members[index] for index in left], ids=ids)
