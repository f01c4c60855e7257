"""Where messages gather whose order counts: one place for each queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rmq_protocol.message import MessageQueue

from ...errors import RequestTimeoutError
from ...transport import Receiver
from ..lanes import Lane, Target
from ..outgoing import Outgoing
from ..replies import stored_batch, stored_message
from .gathering import Entry, Gathering, Request, alive, replace
from .shown import BatchWatch, begin_shown

if TYPE_CHECKING:
    from .batcher import Batcher

__all__ = ["InOrder"]


class InOrder(Gathering):
    """Of one queue: requests go one after the other, in the order of the calls, and so do those that go alone.

    ``queue``: as users know it. ``fixed``: nothing may go to another queue. Messages are encoded, one by one, before they gather.
    """

    in_order = True

    __slots__ = ("_busy", "_lane", "_target", "_topic", "_wait_store", "fixed", "queue")

    def __init__(self, batcher: Batcher, lane: Lane, target: Target, *, fixed: bool) -> None:
        super().__init__(batcher)
        self._lane = lane
        self._target = target
        self.queue: MessageQueue = target.queue
        self.fixed = fixed
        self._busy = False
        self._wait_store = True
        self._topic = ""
        """As the user wrote it, who may give its namespace or leave it out."""

    def aim(self, lane: Lane, target: Target) -> None:
        """Where the queue is by now."""
        self._lane, self._target = lane, target

    # -- what comes

    def add(self, receiver: Receiver, outgoing: Outgoing, size: int, deadline: float, *, wait_store: bool) -> None:
        """``size``: bytes that the message takes in a batch, of which one takes at most ``max_bytes``."""
        if wait_store is not self._wait_store or outgoing.topic != self._topic:
            if self.members:
                self.full()
            self._wait_store, self._topic = wait_store, outgoing.topic
        self._add(receiver, outgoing, size, deadline)

    def add_alone(self, receiver: Receiver, outgoing: Outgoing, read: Any, deadline: float) -> None:
        """A request of its own, in its place. It does not linger, nor does what it is behind any longer."""
        self._seal(Entry([(receiver, outgoing, deadline)], read=read), deadline)

    def begin_at_once(self) -> bool:
        """Gives the turn to the caller if nothing is here or under way; it ends by ``ended``."""
        if self._busy or self.members or self._sealed:
            return False
        self._busy = True
        return True

    def add_turn(self, receiver: Receiver, outgoing: Outgoing, deadline: float) -> None:
        """Resolves the receiver when the turn is its own; it ends by ``ended``."""
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

    # -- what leaves

    def _leave(self) -> None:
        while not self._busy and (entry := self._next()) is not None:
            self._busy = True
            if entry.turn:
                entry.members[0][0].set_result(None)
                return
            topic = entry.members[0][1].topic
            self._lane, self._target = self._batcher.by_now(topic, self._lane, self._target)
            self._batcher.go(self, entry, self._lane, self._target, fixed=self.fixed)
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
            entry, watch = begin_shown(entry, target)
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
        if self._batcher.is_connected(self._target):
            why = "it waited in the client for the answer to earlier messages for that queue until its time was over"
        else:
            why = f"no connection to {self._target.address} in time"
        text = f"the message for queue {number} of topic {topic} on {broker} was not sent: {why}"
        return RequestTimeoutError(text, maybe_stored=False, broker=broker, address=self._target.address)
