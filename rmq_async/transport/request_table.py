"""The requests of a connection by opaque, the frames that are held back, and the deadline of each request.

To be cheap, a request has one future and one table entry, but no task, no timer and no ``wait_for``. One timer per connection is
set for the earliest deadline. This module has no socket: frames go to the write coalescer.

The number of unanswered sends is limited by the connection's ``SendWindow`` and the producer's ``broker_window``; further sends are
held in their order. While the transport has paused writing because the peer does not read, every request is held. If a held request
times out or is cancelled, its frame is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from math import inf
from operator import length_hint
from typing import Final, NamedTuple

from rmq_protocol.constants import RequestCode
from rmq_protocol.pull_codec import PullTemplate
from rmq_protocol.send_codec import FIRST_OPAQUE, LAST_OPAQUE, SendTemplate

from .. import machine
from .coalescer import WriteCoalescer
from .pending import (
    BLOCKED_AFTER,
    GRACE_AFTER_WRITE,
    Deadlines,
    HeldFrame,
    OnewayCallback,
    Pending,
    Receiver,
    overdue,
)
from .request_hooks import cancel_hooked
from .send_window import SendWindow
from .states import late_error

_OPAQUES: Final = range(FIRST_OPAQUE, LAST_OPAQUE + 1)
_PULL: Final = int(RequestCode.PULL_MESSAGE)
_SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
LEAST_WRITTEN: Final = 0.2
"""Minimum seconds for the response to a send that was held back, if the call has that much time left."""
MOST_MADE_UP: Final = 1.0
FEW: Final = 16
"""Number of the oldest entries among which the oldest send is searched; without a limit, the search could visit thousands of long
polls."""


class Remainder(NamedTuple):
    """The entries left in a table when its connection closed: unanswered requests, and the callbacks of held one-way frames."""

    requests: list[Pending]
    oneways: list[OnewayCallback]


def _oldest_of(owner: object, table: Mapping[int, Pending | HeldFrame], since: int, newest: int) -> int:
    if not table:
        return 0
    if 0 <= newest - since < len(table):
        for opaque in range(since, newest + 1):
            if (entry := table.get(opaque)) is not None and entry.owner is owner:
                return opaque
        return 0
    return next((opaque for opaque, entry in table.items() if entry.owner is owner), 0)


def _make_up(pending: Pending, now: float) -> None:
    """Extend the deadline of a held request because the event loop was blocked, so that no frames could be released. Do this once
    per request.

    The extension is the time since the deadline passed, at most MOST_MADE_UP seconds.
    """
    if pending.sequence == 0:
        pending.sequence = -1
        pending.deadline = now + min(now - pending.deadline, MOST_MADE_UP)
        pending.call_deadline = max(pending.call_deadline, pending.deadline)


class RequestTable:
    """The requests of one connection.

    A request leaves the table when its response arrives, when the deadline of its call has passed (or of its attempt, if its frame
    was not written), when its caller or its owner gives it up, or when the connection closes.

    The connection uses ``entries``, ``writer``, ``deadlines``, ``is_open`` and ``last_used`` directly, for each read or for each
    response, to save calls.

    Args:
        lost: ``lost(written, code)`` returns the error of a request on a connection that is not open. ``code`` is None for a
            request that did not enter the table.
        die: Called after ``dead_after`` seconds without a received byte, counted from the first request that was written after the
            last received byte; long polls do not count.
        unread: Returns the number of bytes that the kernel has received and the loop has not read.
    """

    __slots__ = (
        "_expects_answer", "_flushed", "_held_control", "_held_oneway_bytes", "_held_oneways", "_lost", "_others", "_sequence",
        "_unanswered", "_window", "address", "deadlines", "entries", "held", "is_open", "last_used", "limit", "opaques",
        "untyped", "window", "writer",
    )  # fmt: skip

    def __init__(
        self,
        address: str,
        dead_after: float,
        *,
        lost: Callable[[bool, int | None], Exception],
        die: Callable[[], None],
        unread: Callable[[], int],
    ) -> None:
        self.address = address
        self.is_open = False
        """Whether the table accepts requests. It is a plain attribute because it is read for every message."""
        self.last_used = machine.monotonic()
        self.entries: dict[int, Pending] = {}
        """Requests whose frames are written or gathered for a write, by opaque."""
        self.opaques: Iterator[int] = iter(_OPAQUES[1:])
        """The unused opaques before the numbers start again. ``next(opaques, 0)`` takes half the time of ``next_opaque``, which
        replaces an exhausted iterator."""
        self.untyped = 0
        """Number of ``entries`` that are not sends."""
        self.held: OrderedDict[int, HeldFrame] = OrderedDict()
        """Sends and one-way frames that are held back, in the order in which they will be written."""
        self.window = SendWindow()
        self.limit = self.window.size
        """The size of ``window``. It is a plain attribute because it is read for every message."""
        self.writer = WriteCoalescer(self._before_write, self._count_sends)
        self.deadlines = Deadlines(dead_after, self.writer.push, self._end_late, die, unread)
        self._lost = lost
        self._expects_answer = False
        self._sequence = 0
        self._flushed = 0
        self._others = 0  # number of requests so far that are not sends
        self._unanswered = 0  # number of sends that left ``entries`` without a response
        self._held_control: OrderedDict[int, HeldFrame] = OrderedDict()
        """Requests other than sends that are held back; they are released before the frames in ``held``."""
        self._held_oneways = 0
        self._held_oneway_bytes = 0
        self._window = 1 << 30

    def require_open(self) -> None:
        """Raise ConnectionLostError unless the table accepts requests.

        Call this before a frame is signed, because a traceback that shows variables would show the signature.
        """
        if not self.is_open:
            raise self._lost(False, None)

    # -- state

    @property
    def in_flight(self) -> int:
        """Number of requests whose frames are written or gathered for a write."""
        return len(self.entries)

    @property
    def sends_in_flight(self) -> int:
        """Number of sends whose frames are written or gathered for a write."""
        return self._count_sends()

    @property
    def unanswered(self) -> int:
        """Number of unanswered requests of any kind, including held requests."""
        return len(self.entries) + len(self._held_control) + len(self.held) - self._held_oneways

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes of frames that are gathered for a write, and of held one-way frames.

        Held requests do not count here, because their senders count them.
        """
        return self.writer.gathered_bytes + self._held_oneway_bytes

    def oldest_of(self, owner: object, since: int = 0) -> tuple[int, int]:
        """Return the opaque of the owner's oldest unanswered request (0 if there is none), and the newest opaque given out.

        Opaques rise until the numbers start again, so a caller that keeps the newest opaque of an earlier call can tell whether the
        oldest request is older than that call.

        Args:
            since: The opaque at which the search may begin, because the owner has no request with a lower opaque.
        """
        newest = LAST_OPAQUE - length_hint(self.opaques)
        oldest = _oldest_of(owner, self.entries, since, newest) or _oldest_of(owner, self.held, since, newest)
        return oldest, newest

    # -- requests enter

    def next_opaque(self) -> int:
        opaque = next(self.opaques, 0)
        if not opaque:
            self.opaques = iter(_OPAQUES)
            opaque = next(self.opaques)
        return opaque

    def start_request(self, opaque: int, parts: bytes | list[bytes], pending: Pending, *, alone: bool = False) -> None:
        """Add a request that is not a send.

        The request is held while the peer does not read, but does not count towards the window of sends.

        Args:
            alone: Whether to write the frame immediately if no other frames are gathered for a write.
        """
        if not self.is_open:
            self.require_open()
        if pending.deadline < self.deadlines.at:
            self.deadlines.arm(pending.deadline)
        if self.writer.paused:
            self._held_control[opaque] = HeldFrame(parts, pending)
            return
        self._enter(opaque, pending)
        if not self.writer.frames and (len(self.entries) == 1 or alone):
            self.writer.write(parts)
        else:
            self.writer.queue(parts, urgent=True)

    def start_pull(
        self,
        template: PullTemplate,
        offset: int,
        max_messages: int,
        receiver: Receiver,
        deadline: float,
        *,
        gather: bool = False,
    ) -> int:
        """Start a pull from a template and return its opaque.

        For a response with a JSON header and messages, the receiver gets a PullReply; for any other response, a RemotingCommand.

        By default, the frame is written immediately unless other frames are gathered for a write or the peer does not read: the
        caller is about to decode the previous response, and the peer should work meanwhile.

        Args:
            gather: Whether to write the frame at the end of the iteration, together with others. Use this to start several pulls.
        """
        opaque = self.next_opaque()
        pending = Pending(receiver, deadline, deadline, _PULL, typed=False, long_poll=template.held, pull=True)
        self.start_request(opaque, template.frame(opaque, offset, max_messages), pending, alone=not gather)
        return opaque

    def enter_single(
        self,
        opaque: int,
        parts: bytes | list[bytes],
        receiver: Receiver,
        deadline: float,
        call_deadline: float,
        owner: object,
        window: int,
    ) -> Pending:
        """Add the send of one message and return its entry.

        This method does the work of ``start_send`` with fewer calls, because it runs for each message. The caller must have called
        ``require_open``, or read ``is_open``, before it made the frame.
        """
        if deadline < self.deadlines.at:
            self.deadlines.arm(deadline)
        entries, writer = self.entries, self.writer
        limit = self.limit
        if window < limit:
            limit = window
        if writer.paused or self.held or (len(entries) >= limit and len(entries) - self.untyped >= limit):
            pending = Pending(receiver, deadline, call_deadline, _SEND, owner, 0, opaque)
            self._hold(opaque, parts, pending, window)
            return pending
        self._sequence = sequence = self._sequence + 1
        # The Struct is made here with its sequence: setting a field later costs as much as making the Struct.
        entries[opaque] = pending = Pending(receiver, deadline, call_deadline, _SEND, owner, sequence, opaque)
        self._expects_answer = True
        frames = writer.frames
        if len(frames) < writer.room and parts.__class__ is bytes:
            frames.append(parts)  # nearly always, queue would do only this
        elif not frames and len(entries) == 1:
            writer.write(parts)
        else:
            writer.queue(parts)
        return pending

    def start_send(self, opaque: int, parts: bytes | list[bytes], pending: Pending, window: int) -> None:
        """Add a send of one message or of a batch.

        Args:
            opaque: An opaque of this table.
            parts: The frame, which was made with ``opaque``.
        """
        if not self.is_open:
            self.require_open()
        if pending.deadline < self.deadlines.at:
            self.deadlines.arm(pending.deadline)
        pending.opaque = opaque
        entries, writer = self.entries, self.writer
        if writer.paused or self.held or len(entries) - self.untyped >= min(window, self.limit):
            self._hold(opaque, parts, pending, window)
            return
        entries[opaque] = pending
        self._sequence = pending.sequence = self._sequence + 1
        self._expects_answer = True
        if not writer.frames and len(entries) == 1:
            writer.write(parts)
        else:
            writer.queue(parts)

    def submit_oneway(self, parts: bytes | list[bytes], written: Callable[[int], None], cost: int) -> None:
        """Queue a one-way frame.

        The frame keeps its position in the order of the sends, so it is held while sends are held.

        Args:
            written: ``written(cost)`` is called when the frame is written and the transport is not paused, or when the frame is
                dropped.
        """
        self.require_open()
        if self.writer.paused or self.held:
            if not self.held:
                self._begin_holding()
            self.held[self.next_opaque()] = frame = HeldFrame(parts, None, (written, cost))
            self._held_oneways += 1
            self._held_oneway_bytes += frame.size
            return
        self.writer.when_written(written, cost)
        self.writer.queue(parts)

    def takes_oneways(self) -> bool:
        """Return whether a one-way frame would be queued now and not held."""
        return self.is_open and not self.writer.paused and not self.held

    def when_written(self, written: Callable[[int], None]) -> None:
        """Call ``written(0)`` when all frames that are queued before the next write have been written and the transport is not
        paused, or when these frames are dropped.
        """
        self.writer.when_written(written, 0)

    def submit_single_oneway(self, template: SendTemplate, born_ms: bytes, properties: str, body: bytes, flag: int) -> None:
        """Queue the one-way frame of one message. ``takes_oneways()`` must be true."""
        opaque = next(self.opaques, 0) or self.next_opaque()
        parts = template.parts(opaque, born_ms, properties, body, 0, flag)
        writer = self.writer
        if len(writer.frames) < writer.room and parts.__class__ is bytes:
            writer.frames.append(parts)  # nearly always, queue would do only this
        else:
            writer.queue(parts)

    def _enter(self, opaque: int, pending: Pending) -> None:
        self.entries[opaque] = pending
        if not pending.typed:
            self.untyped += 1
            self._others += 1
        self._sequence = pending.sequence = self._sequence + 1
        if not pending.long_poll:
            self._expects_answer = True

    def _hold(self, opaque: int, parts: bytes | list[bytes], pending: Pending, window: int) -> None:
        """Hold the frame of a send until the peer reads and few enough sends are unanswered."""
        if not self.held:
            self._begin_holding()
        self._window = window
        self.held[opaque] = HeldFrame(parts, pending)

    def _begin_holding(self) -> None:
        """Let the window count and time responses from now on."""
        entries = self.entries
        if self.window.timed not in entries:
            self.window.timed = 0  # this send was answered while no sends were held
        oldest = (each for each, pending in islice(entries.items(), FEW) if pending.typed)
        self.window.holds(self._count_answers(), machine.monotonic(), oldest)

    # -- requests leave

    def take(self, opaque: int) -> Pending | None:
        """Remove and return the entry with ``opaque``. Return None if there is none."""
        pending = self.entries.pop(opaque, None)
        if pending is not None and not pending.typed:
            self.untyped -= 1
        return pending

    def forget(self, opaque: int) -> None:
        """Remove a request whose caller no longer waits for the response. If its frame is held, it is dropped."""
        pending = self._remove(opaque)
        self.release_held()
        if pending is not None:
            cancel_hooked(pending.receiver)

    def knows(self, opaque: int) -> bool:
        """Return whether the request is still in the table, whether its frame was written or not."""
        return opaque in self.entries or opaque in self.held or opaque in self._held_control

    def abandon(self, owner: object, error: Callable[[bool], BaseException]) -> None:
        """End every request of ``owner``, each with its own error from ``error(written)``."""
        self.writer.push()  # gathered frames will be written in any case, so their requests count as written
        ended = [item for item in self.entries.items() if item[1].owner is owner]
        for held in (self.held, self._held_control):
            ended += [(opaque, each.pending) for opaque, each in held.items() if each.pending and each.pending.owner is owner]
        for opaque, _ in ended:
            self._remove(opaque)
        for _, pending in ended:
            if not pending.receiver.done():
                pending.receiver.set_exception(error(self.was_written(pending)))
        self.release_held()

    def was_written(self, pending: Pending) -> bool:
        """Return whether the request's frame has been passed to the transport, so that the peer may have received it."""
        return 0 < pending.sequence <= self._flushed

    def take_all(self) -> Remainder:
        """Empty the table when its connection closes, and return its entries, which must be passed to ``end``."""
        frames = [*self.held.values(), *self._held_control.values()]
        held = [frame.pending for frame in frames if frame.pending is not None]
        unfinished = Remainder([*self.entries.values(), *held], [frame.oneway for frame in frames if frame.oneway is not None])
        self.entries = {}
        self.untyped = self._held_oneways = self._held_oneway_bytes = 0
        self.held.clear()
        self._held_control.clear()
        return unfinished

    def end(self, unfinished: Remainder) -> None:
        """End each request that ``take_all`` returned with its own error, and call the callbacks of the one-way frames."""
        for pending in unfinished.requests:
            if not pending.receiver.done():
                pending.receiver.set_exception(self._lost(self.was_written(pending), pending.code))
        self.writer.close()
        for written, cost in unfinished.oneways:
            written(cost)

    # -- held frames

    def answers_came(self) -> None:
        """Adjust the window to the responses of one read of the socket, and queue held frames. Call this while sends are held."""
        self.window.came(self._count_answers(), self.last_used, self.entries)
        self.limit = self.window.size
        self.release_held()

    def adjust(self, answers: int, seconds: float) -> None:
        """Adjust the window to one response.

        Args:
            answers: The number of responses by which the window may grow.
            seconds: The time from the write of the request to its response.
        """
        self.window.measured(seconds)
        self.window.answered(answers)
        self.limit = self.window.size

    def busy(self, pending: Pending) -> None:
        """Narrow the window because the broker responded "busy" to ``pending``, which has left the table."""
        self.window.busy(pending.sequence, self._sequence, self._count_sends() + 1)
        self.limit = self.window.size

    def release_held(self) -> None:
        """Queue as many held frames as the peer and the window allow."""
        held, control, writer = self.held, self._held_control, self.writer
        while control and not writer.paused:
            self._release(*control.popitem(last=False))
        window = min(self._window, self.limit)
        while held and not writer.paused and (self._count_sends() < window or next(iter(held.values())).oneway):
            self._release(*held.popitem(last=False))

    def _release(self, opaque: int, frame: HeldFrame) -> None:
        if frame.oneway is not None:
            self._held_oneways -= 1
            self._held_oneway_bytes -= frame.size
            self.writer.when_written(*frame.oneway)
        elif frame.pending is not None:
            pending, now = frame.pending, machine.monotonic()
            if pending.deadline < now:
                _make_up(pending, now)
            # The send may have waited for most of its attempt's time. If the attempt ended now, a retry at another broker would
            # store the message twice.
            pending.deadline = max(pending.deadline, min(now + LEAST_WRITTEN, pending.call_deadline))
            self._enter(opaque, pending)
            if not self.window.timed and pending.typed:
                self.window.time(opaque, now)
        self.writer.queue(frame.parts)

    def _remove(self, opaque: int) -> Pending | None:
        """Remove and return a request that gets no response. If its frame is held, drop the frame."""
        pending = self.take(opaque)
        if pending is not None:
            self._unanswered += pending.typed
            if opaque == self.window.timed:
                self.window.timed = 0
            return pending
        frame = self.held.pop(opaque, None) or self._held_control.pop(opaque, None)
        return frame.pending if frame is not None else None

    def _count_answers(self) -> int:
        """Return the number of sends that have been answered so far."""
        return self._sequence - self._others - self._count_sends() - self._unanswered

    def _why_held(self) -> str:
        """Return why a frame was not written, as the end of an error message after "because"."""
        unanswered, window = self._count_sends(), min(self._window, self.limit)
        if self.writer.paused or unanswered < window:
            return "the server does not read from the connection"
        return f"{unanswered} earlier sends are unanswered and the broker takes {window} at a time"

    def _count_sends(self) -> int:
        """Return the number of sends in ``entries``.

        Other requests, such as pulls that the peer holds, do not count towards a window.
        """
        return len(self.entries) - self.untyped

    # -- writing

    def _before_write(self) -> None:
        before, self._flushed = self._flushed, self._sequence
        deadlines = self.deadlines
        now = self.last_used = machine.monotonic()
        if now - deadlines.at > BLOCKED_AFTER:
            self._extend(before, now + GRACE_AFTER_WRITE)
        if self._expects_answer:
            self._expects_answer = False
            if deadlines.silent_since == inf:
                deadlines.silent_since = now
                if now + deadlines.dead_after < deadlines.at:
                    deadlines.arm(now + deadlines.dead_after)

    # -- deadlines

    def _extend(self, before: int, until: float) -> None:
        """Extend the deadlines of the requests in the present write to at least ``until``, because the loop was blocked.

        Args:
            before: The ``sequence`` of the newest request that was written earlier. The present write includes all later requests,
                because any of several delayed timers may have caused it.
        """
        leaving = self._flushed - before
        for pending in reversed(self.entries.values()):  # newest first: there may be thousands of older pulls
            if leaving <= 0:
                break
            if before < pending.sequence <= self._flushed:
                leaving -= 1
                if pending.deadline < until:
                    pending.deadline = until

    def _end_late(self, now: float) -> float:
        """End the requests whose deadline has passed, and return the earliest deadline of the other requests."""
        held = [
            (opaque, frame.pending)
            for opaque, frame in chain(self.held.items(), self._held_control.items())
            if frame.pending is not None
        ]
        for _, pending in held:
            if now - pending.deadline > BLOCKED_AFTER:
                _make_up(pending, now)
        past, earliest = overdue(chain(self.entries.items(), held), now)
        why_held = self._why_held() if past else ""
        for opaque, pending in past:
            earliest = min(earliest, self._expire(opaque, pending, now, why_held))
        if past and self.held:
            self.release_held()
        return earliest

    def _expire(self, opaque: int, pending: Pending, now: float, why_held: str) -> float:
        """End a request whose deadline has passed: give the receiver a RequestTimeoutError, unless the receiver is done.

        Return the request's next deadline. Return infinity if the request has left the table.
        """
        written = self.was_written(pending)
        call_over = pending.call_deadline <= now or not written  # an unwritten frame gets no late response; drop it
        if call_over:
            self._remove(opaque)
        else:
            pending.deadline = pending.call_deadline
        if not pending.receiver.done():
            why = None if written else why_held
            pending.receiver.set_exception(late_error(self.address, pending.code, why))
        return inf if call_over else pending.call_deadline
