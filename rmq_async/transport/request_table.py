"""What one connection has under way: its requests by opaque, the frames that are held back, and when each request is over.

Cost decides the form. Per request there is one future and one table entry; no Task, no timer, no ``wait_for``. Deadlines are
checked by one timer per connection, set for the earliest of them. No socket is known here: frames go to the write coalescer.

Bounds: at most ``window`` requests of producers are on the wire, further ones are held in order; while the peer does not read
(the transport's buffer is not empty) everything is held. What is held can still time out or be cancelled, and then is gone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from rmq_protocol.constants import RequestCode
from rmq_protocol.pull_codec import PullTemplate
from rmq_protocol.send_codec import FIRST_OPAQUE, LAST_OPAQUE, LENGTHS, SendTemplate

from .coalescer import WriteCoalescer
from .deadlines import BLOCKED_AFTER, GRACE_AFTER_WRITE, Deadlines
from .pending import Pending, Receiver, overdue
from .reasons import late
from .request_hooks import given_up

__all__ = ["RequestTable"]

_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
_PULL: Final = int(RequestCode.PULL_MESSAGE)


class RequestTable(ABC):
    """The half of a connection that sends: requests enter here, and leave with their answer, their deadline or their caller.

    ``die``: called when the peer has not sent a byte for ``dead_after`` seconds, counted from the first request written after the
    last byte came.
    """

    # More attributes than instances of a class share a layout for (30): without slots each would be looked up in a dictionary.
    __slots__ = (
        "_deadlines", "_expects_answer", "_flushed", "_held", "_held_control", "_held_oneways", "_opaque", "_others", "_sequence",
        "_table", "_window", "_writer", "address", "is_open", "last_used",
    )  # fmt: skip

    def __init__(self, address: str, dead_after: float, die: Callable[[], None]) -> None:
        self.address = address
        self.is_open = False
        """Takes requests. A plain attribute: it is read for every message."""
        self.last_used = monotonic()
        self._table: dict[int, Pending] = {}
        self._opaque = FIRST_OPAQUE
        self._writer = WriteCoalescer(self._before_write, self._sends_under_way)
        self._others = 0
        self._expects_answer = False
        self._sequence = 0
        self._flushed = 0
        self._held: OrderedDict[int, bytes | list[bytes]] = OrderedDict()
        self._held_oneways: dict[int, tuple[Callable[[int], None], int]] = {}
        """Those of ``_held`` that get no answer, and the callbacks for them."""
        self._held_control: OrderedDict[int, bytes | list[bytes]] = OrderedDict()
        self._window = 1 << 30
        self._deadlines = Deadlines(dead_after, self._writer.push, self._end_late, die, self._unread)

    @abstractmethod
    def require_open(self) -> None:
        """Raises ConnectionLostError where it takes no requests. Asked before a signed frame is made: tracebacks show that."""

    # -- what is there

    @property
    def in_flight(self) -> int:
        """Requests on the wire or about to be; those held back are not counted."""
        return self._sends_under_way() + self._others - len(self._held_control)

    @property
    def sends_under_way(self) -> int:
        """Sends on the wire or about to be."""
        return self._sends_under_way()

    @property
    def pending(self) -> int:
        """Requests of any kind that have not been answered, those held back included."""
        return len(self._table)

    def unanswered(self, owner: object, since: int = 0) -> tuple[int, int]:
        """Opaques: of the owner's oldest request that has no answer yet (0: none), and the newest that was given out.

        Opaques rise, so a caller that noted the newest one earlier knows how old the oldest is. ``since``: an opaque before which
        the owner has nothing under way, as it knows from asking before; with it the cost is that of what is newer.
        """
        table, newest = self._table, self._opaque
        if 0 <= newest - since < len(table):
            for opaque in range(since, newest + 1):
                if (pending := table.get(opaque)) is not None and pending.owner is owner:
                    return opaque, newest
            return 0, newest
        for opaque, entry in table.items():
            if entry.owner is owner:
                return opaque, newest
        return 0, newest

    def _held_bytes(self) -> int:
        """Of one-way frames: those of requests are counted by their senders."""
        held = [self._held[opaque] for opaque in self._held_oneways]
        return sum(len(parts) if isinstance(parts, bytes) else sum(map(len, parts)) for parts in held)

    # -- requests enter

    def next_opaque(self) -> int:
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        return opaque

    def submit(self, opaque: int, pending: Pending, parts: bytes | list[bytes], window: int = 1 << 30) -> None:
        """Enters a request into the table and queues its frame, or holds the frame while the peer is behind.

        Requests submitted without a ``window`` (control requests) pass those that are held for it.
        """
        table = self._table
        if not self.is_open:
            self.require_open()
        if pending.deadline < self._deadlines.at:
            self._deadlines.arm(pending.deadline)
        table[opaque] = pending
        if not pending.typed:
            self._others += 1
        if self._writer.paused or self._beyond(window) or (self._held and window < 1 << 30):
            if window < 1 << 30:
                self._window = window
                self._held[opaque] = parts
            else:
                self._held_control[opaque] = parts
            return
        self._sequence = pending.sequence = self._sequence + 1
        if not pending.long_poll:
            self._expects_answer = True
        if not self._writer.frames and (len(table) == 1 or pending.pull):
            self._writer.write(parts)
        else:
            self._writer.queue(parts, urgent=True)

    def start_pull(self, template: PullTemplate, offset: int, max_messages: int, receiver: Receiver, deadline: float) -> int:
        """A pull by template; returns its opaque. The receiver gets a PullReply, or a RemotingCommand if there are no messages.

        Its frame leaves at once unless others are gathered: the caller is about to decode the answer before, and the peer should
        work meanwhile.
        """
        opaque = self.next_opaque()
        self.submit(
            opaque,
            Pending(receiver, deadline, deadline, _PULL, typed=False, long_poll=template.held, pull=True),
            template.frame(opaque, offset, max_messages),
        )
        return opaque

    def start_plain(
        self,
        template: SendTemplate,
        born_ms: bytes,
        unique_id: str,
        body: bytes,
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        owner: object,
        window: int,
    ) -> Pending:
        """A send of which ``unique_id`` is all there is to say besides its body: ``submit`` in one piece, as it runs for each.

        ``unique_id`` has the length that ``template`` was made for.
        """
        if not self.is_open:
            self.require_open()
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        parts: bytes | list[bytes]
        if (size := len(body)) < template.plain_below:  # what ``plain`` does, nearly always
            parts = template.plain_frame % (LENGTHS[template.plain_base + size], born_ms, unique_id.encode(), opaque, body)
        else:
            parts = template.plain(opaque, born_ms, unique_id, body)
        if deadline < self._deadlines.at:
            self._deadlines.arm(deadline)
        table, writer, sequence = self._table, self._writer, self._sequence + 1
        table[opaque] = pending = Pending(receiver, deadline, call_deadline, _SEND, owner, sequence, opaque)
        if writer.paused or self._held or (len(table) > window and self._beyond(window)):
            return self._hold(pending, parts, window)
        self._sequence = sequence
        self._expects_answer = True
        frames = writer.frames
        if len(frames) < writer.room and type(parts) is bytes:
            frames.append(parts)  # what queue does, nearly always
        elif not frames and len(table) == 1:
            writer.write(parts)
        else:
            writer.queue(parts)
        return pending

    def start_send(
        self,
        opaque: int,
        parts: bytes | list[bytes],
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        code: int,
        owner: object,
        window: int,
    ) -> Pending:
        """Any other send: ``parts`` is its frame, under an opaque of this connection."""
        self.require_open()
        if deadline < self._deadlines.at:
            self._deadlines.arm(deadline)
        pending = Pending(receiver, deadline, call_deadline, code, owner, self._sequence + 1, opaque)
        self._table[opaque] = pending
        if self._writer.paused or self._held or self._beyond(window):
            return self._hold(pending, parts, window)
        self._sequence += 1
        self._expects_answer = True
        if not self._writer.frames and len(self._table) == 1:
            self._writer.write(parts)
        else:
            self._writer.queue(parts)
        return pending

    def _hold(self, pending: Pending, parts: bytes | list[bytes], window: int) -> Pending:
        """Keeps a send's frame until the peer reads, or has answered enough."""
        pending.sequence = 0
        self._window = window
        self._held[pending.opaque] = parts
        return pending

    def submit_oneway(self, parts: bytes | list[bytes], written: Callable[[int], None], cost: int) -> None:
        """Queues a frame nobody answers; ``written(cost)`` is called once its last byte is in the kernel, or never will be.

        It keeps its place among the sends, so it is held where they are.
        """
        self.require_open()
        if self._writer.paused or self._held:
            opaque = self.next_opaque()
            self._held[opaque] = parts
            self._held_oneways[opaque] = (written, cost)
            return
        self._writer.when_written(written, cost)
        self._writer.queue(parts)

    def takes_oneways(self) -> bool:
        """Whether a frame that nobody answers would not be held."""
        return self.is_open and not self._writer.paused and not self._held

    def when_written(self, written: Callable[[int], None]) -> None:
        """Calls ``written(0)`` once the last byte of what is queued from here on is in the kernel, or never will be.

        The callback may find that several frames were queued meanwhile.
        """
        self._writer.when_written(written, 0)

    def submit_plain_oneway(self, template: SendTemplate, born_ms: bytes, unique_id: str, body: bytes) -> None:
        """Queues a frame nobody answers, of a message without properties, while the connection ``takes_oneways``."""
        self._opaque = opaque = self._opaque + 1 if self._opaque < LAST_OPAQUE else FIRST_OPAQUE
        parts = template.plain(opaque, born_ms, unique_id, body)
        writer = self._writer
        if len(writer.frames) < writer.room and parts.__class__ is bytes:
            writer.frames.append(parts)  # what queue does, nearly always
        else:
            writer.queue(parts)

    # -- requests leave

    def forget(self, opaque: int) -> None:
        """Takes a request out of the table: its answer is not waited for any more."""
        pending = self._remove(opaque)
        self._drop_held(opaque)
        self._release_held()
        if pending is not None:
            given_up(pending.receiver)

    def _remove(self, opaque: int) -> Pending | None:
        pending = self._table.pop(opaque, None)
        if pending is not None and not pending.typed:
            self._others -= 1
        return pending

    def knows(self, opaque: int) -> bool:
        """Whether the request is still in the table, so that its answer would be taken."""
        return opaque in self._table

    def abandon(self, owner: object, error: Callable[[bool], BaseException]) -> None:
        """Ends every request of ``owner`` with an error of its own, made for whether its frame was written."""
        self._writer.push()  # what is gathered leaves in any case
        abandoned = [item for item in self._table.items() if item[1].owner is owner]
        for opaque, _ in abandoned:
            self._remove(opaque)
            self._drop_held(opaque)
        for _, pending in abandoned:
            if not pending.receiver.done():
                pending.receiver.set_exception(error(self.was_written(pending)))
        self._release_held()

    def was_written(self, pending: Pending) -> bool:
        """Whether the frame has been given to the transport, so that the peer may have it."""
        return 0 < pending.sequence <= self._flushed

    # -- writing

    def _before_write(self) -> None:
        before, self._flushed = self._flushed, self._sequence
        deadlines = self._deadlines
        now = self.last_used = monotonic()
        if now - deadlines.at > BLOCKED_AFTER:
            self._spare(before, now + GRACE_AFTER_WRITE)
        if self._expects_answer:
            self._expects_answer = False
            if deadlines.silent_since == inf:
                deadlines.silent_since = now
                if now + deadlines.dead_after < deadlines.at:
                    deadlines.arm(now + deadlines.dead_after)

    def _sends_under_way(self) -> int:
        return len(self._table) - (len(self._held) - len(self._held_oneways)) - self._others

    def _drop_held(self, opaque: int) -> None:
        self._held.pop(opaque, None)
        self._held_control.pop(opaque, None)

    def _release_held(self) -> None:
        held, oneways = self._held, self._held_oneways
        while self._held_control and not self._writer.paused:
            self._release(*self._held_control.popitem(last=False))
        while held and not self._writer.paused and (self._sends_under_way() < self._window or next(iter(held)) in oneways):
            self._release(*held.popitem(last=False))

    def _beyond(self, window: int) -> bool:
        """Whether more sends are under way; pulls that wait at the peer and other control requests take no place in it."""
        return len(self._table) - self._others > window

    def _release(self, opaque: int, parts: bytes | list[bytes]) -> None:
        oneway = self._held_oneways.pop(opaque, None)
        if oneway is not None:
            self._writer.when_written(*oneway)
            self._writer.queue(parts)
            return
        pending = self._table[opaque]
        self._sequence = pending.sequence = self._sequence + 1
        if not pending.long_poll:
            self._expects_answer = True
        self._writer.queue(parts)

    def _take_all(self) -> tuple[list[Pending], list[tuple[Callable[[int], None], int]]]:
        """Empties the table: those that wait for an answer, and the callbacks of one-way frames that were held back."""
        waiting, oneways = list(self._table.values()), list(self._held_oneways.values())
        self._table = {}
        self._held.clear()
        self._held_control.clear()
        self._held_oneways = {}
        return waiting, oneways

    # -- deadlines

    @abstractmethod
    def _unread(self) -> int:
        """Bytes that the kernel has and that are not read yet."""

    def _spare(self, before: int, until: float) -> None:
        """Has the requests that leave now, after a blocked loop, wait for their answers until ``until`` at least.

        ``before``: the newest that has left. Several timers that the block held up may be the one that writes.
        """
        leaving = self._flushed - before
        for pending in reversed(
            self._table.values()
        ):  # mostly the newest: each pull leaves by itself, and there may be thousands
            if leaving <= 0:
                break
            if before < pending.sequence <= self._flushed:
                leaving -= 1
                if pending.deadline < until:
                    pending.deadline = until

    def _end_late(self, now: float) -> float:
        """Ends those whose deadline has come; returns the earliest of the others."""
        past, earliest = overdue(self._table, now)
        for opaque, pending in past:
            earliest = min(earliest, self._expire(opaque, pending, now))
        if past and self._held:
            self._release_held()
        return earliest

    def _expire(self, opaque: int, pending: Pending, now: float) -> float:
        """Gives the receiver the error of a late answer; returns the entry's next deadline, infinity when it is gone."""
        written = self.was_written(pending)
        call_over = pending.call_deadline <= now or not written  # what never left needs no answer, and must not leave later
        if call_over:
            self._remove(opaque)
            self._drop_held(opaque)
        else:
            pending.deadline = pending.call_deadline
        if not pending.receiver.done():
            pending.receiver.set_exception(late(self.address, pending.code, written=written))
        return inf if call_over else pending.call_deadline
