"""The gathering of one queue, for messages that keep the order of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from rmq_protocol.message import MessageQueue

from ...errors import RequestTimeoutError
from ...transport import Receiver
from ..encoding import Outgoing, stored_batch, stored_message
from ..routing import Target, TopicQueues
from .batch_watch import BatchWatch, begin_watched
from .gathering import Batches, Entry, Gathering, Request, alive, replace

__all__ = ["QueueGathering"]


class QueueGathering(Gathering):
    """Ordered messages of one queue: its requests, batches or single sends, go one at a time in the order of the calls.

    ``queue``: with the topic as users know it. ``topic_queues``, ``target``: those of the newest call or request. ``fixed``:
    no message may go to another queue. Each message is encoded before it is added.
    """

    in_order = True

    __slots__ = ("_busy", "_topic", "_wait_store", "fixed", "queue", "target", "topic_queues")

    def __init__(self, batcher: Batches, topic_queues: TopicQueues, target: Target, *, fixed: bool) -> None:
        super().__init__(batcher)
        self.topic_queues = topic_queues
        self.target = target
        self.queue: MessageQueue = target.queue
        self.fixed = fixed
        self._busy = False
        self._wait_store = True
        self._topic = ""  # as the user wrote it, with or without the namespace

    # -- entering

    def add(self, receiver: Receiver, outgoing: Outgoing, size: int, deadline: float, *, wait_store: bool) -> None:
        """Adds a message. ``size``: its bytes in a batch; a batch takes at most ``max_bytes``."""
        if wait_store is not self._wait_store or outgoing.topic != self._topic:
            if self.members:
                self.full()
            self._wait_store, self._topic = wait_store, outgoing.topic
        left, members = self._left - size, self.members
        if left < 0 or len(members) >= self._most:
            self.full()
            left, members = self._left - size, self.members
        self._left, self._plain = left, False
        members.append((receiver, outgoing, deadline))
        if self._busy and not self.due and not self._batcher.linger:  # it leaves when the request in flight has ended
            if deadline < self._batcher.alarm:
                self._batcher.watch_until(deadline)
        elif self.due:
            self._wake(deadline)
        else:
            self.due = True
            self._batcher.soon(self, deadline)

    def add_alone(self, receiver: Receiver, outgoing: Outgoing, read: Any, deadline: float) -> None:
        """Adds a request that is not batched, in order. It does not linger, and messages before it stop lingering."""
        self._seal(Entry([(receiver, outgoing, deadline)], read=read), deadline)

    def begin_at_once(self) -> bool:
        """Gives the turn to the caller if no message waits or is in flight, and returns whether it did; ``ended`` ends the turn."""
        if self._busy or self.members or self._sealed:
            return False
        self._busy = True
        return True

    def add_turn(self, receiver: Receiver, outgoing: Outgoing, deadline: float) -> None:
        """Adds a turn, and resolves the receiver when the turn has come; ``ended`` ends the turn."""
        self._seal(Entry([(receiver, outgoing, deadline)], turn=True), deadline)

    def _seal(self, entry: Entry, deadline: float) -> None:
        self.full()
        self._sealed.append(entry)
        self._wake(deadline)
        self._batcher.hasten(self)

    def full(self) -> None:
        if self.members and (entry := self.take()).members:
            self._sealed.append(entry)
            self._batcher.hasten(self)

    # -- leaving

    def leave(self) -> None:
        if self._busy and self.timer is None:
            self.due = False
        elif self._sealed or self.stale or self._leaving or self.timer is not None or not self.members:
            super().leave()
        else:  # what ``_leave`` does, nearly always
            self.due, self._leaving, self._busy = False, True, True
            members, self.members, self._left = self.members, [], self._batcher.max_bytes
            try:
                self._go(Entry(members))
                if not self._busy:
                    self._leave()
            finally:
                self._leaving = False

    def _go(self, entry: Entry) -> None:
        batcher, topic_queues, topic = self._batcher, self.topic_queues, entry.members[0][1].topic
        if batcher.queues_by_topic.get(topic) is not topic_queues:
            self.topic_queues, self.target = batcher.by_now(topic, topic_queues, self.target)
        batcher.go(self, entry, self.topic_queues, self.target, fixed=self.fixed)

    def _leave(self) -> None:
        while not self._busy and (entry := self._next()) is not None:
            self._busy = True
            if entry.turn:
                entry.members[0][0].set_result(None)
                return
            self._go(entry)
        if not (self._busy or self.members or self._sealed):
            self._batcher.forget(self)

    def _next(self) -> Entry | None:
        while self._sealed:
            if (entry := alive(self._sealed.popleft())) is not None:
                return entry
        if not self.members:
            return None
        entry = self.take()
        return entry if entry.members else None

    def request(self, entry: Entry, target: Target) -> tuple[Entry, Request | None]:
        if len(entry.members) == 1:
            return entry, Request(entry.members[0][1], entry.read or stored_message)
        watch = None
        if entry.members[0][1].watch is not None:
            entry, watch = begin_watched(entry, target)
        together = [cast(Outgoing, member[1]) for member in entry.members]
        if len(together) > 1:
            outgoing = self._batcher.encoder.together(together)
            outgoing.watch, outgoing.message = watch, together[0].message
            return entry, Request(outgoing, stored_batch)
        if not together:
            return entry, None
        return entry, Request(msgspec.structs.replace(together[0], watch=watch), stored_message)

    def shrink(self, outgoing: Outgoing, entry: Entry) -> None:
        together = [cast(Outgoing, member[1]) for member in entry.members]
        replace(outgoing, self._batcher.encoder.together(together))
        if isinstance(outgoing.watch, BatchWatch):
            outgoing.watch.keep(together)

    def again(self, entries: Sequence[Entry]) -> None:
        self._sealed.extendleft(reversed(entries))

    def ended(self, broker: str) -> None:
        self._busy = False
        if self.due:
            return
        if self.members or self._sealed:
            self.leave()
        else:
            self._batcher.forget(self)

    def not_sent(self) -> RequestTimeoutError:
        topic, broker, number = self.queue
        if self._batcher.is_connected(self.target):
            why = "it waited in the client for earlier messages for that queue until its timeout; use a longer one"
        else:
            why = f"there was no connection to {self.target.address} within its timeout; use a longer one"
        text = f"the message for queue {number} of topic {topic} on {broker} was not sent: {why}"
        return RequestTimeoutError(text, maybe_stored=False, broker=broker, address=self.target.address)
