"""One direction of a stream: TCP between two kernels, whose headers and acknowledgements take no bandwidth.

Bytes go from the sender's kernel to the receiver's in segments, each after its own latency; numbers keep them in order. Both
kernels hold a bounded number of bytes. A segment that a cut link loses stays with its sender, which sends it again at growing
intervals; of these repetitions only the first one after the end of the cut is simulated. An answer that changes nothing but the
sender's room counts at once, without an event of its own.
"""

from __future__ import annotations

from enum import IntEnum
from errno import ETIMEDOUT
from typing import Final, Protocol

from ..scheduler import Call, Scheduler
from .link import Way, system_error

SEND_BUFFER: Final = 256 * 1024
"""Bytes of one stream that a kernel takes before the receiver's kernel has them."""
RECEIVE_WINDOW: Final = 256 * 1024
"""Bytes of one stream that a kernel keeps for a process that does not read."""
MAX_RTO: Final = 120_000_000_000
"""Nanoseconds between two repetitions of a segment, at most."""
ZERO_WINDOW_PROBE: Final = 200_000_000
"""Nanoseconds until the first probe of a full receiver; each further probe comes after twice as long."""
RETRIES_TIMEOUT: Final = 924_600_000_000
"""Nanoseconds without an answer after which a kernel gives a stream up: Linux with ``tcp_retries2`` = 15."""


class Segment(IntEnum):
    """Kinds of segments. OPEN: the last one of a handshake."""

    OPEN = 0
    DATA = 1
    FIN = 2
    RESET = 3


class Sender(Protocol):
    attached: bool

    def writable(self) -> None:
        """Run when the kernel accepts more bytes."""

    def finished(self) -> None:
        """Run when the other kernel has received every byte and the end of the stream."""

    def fail(self, error: OSError) -> None:
        """Run when the kernel gives the stream up."""


class Receiver(Protocol):
    attached: bool
    gone: bool
    unread: int

    def arrive(self, kind: Segment, data: bytes) -> None:
        """Take a segment; they come in order."""

    def refuse(self) -> None:
        """Answer a segment whose stream is gone with a reset."""

    def unanswered(self) -> None:
        """Run when the reset that should have ended the receiver's side is lost."""


class Flow:
    """The bytes of a stream in one direction.

    Args:
        way: The direction of the link that carries it.
        back: The other one, for the receiver's answers.
    """

    def __init__(self, scheduler: Scheduler, sender: Sender, receiver: Receiver, way: Way, back: Way) -> None:
        self.way = way
        self.done = False
        """Whether the other kernel has everything, its end included."""
        self._scheduler = scheduler
        self._sender = sender
        self._receiver = receiver
        self._back = back
        # of the sender's kernel
        self._outbox = bytearray()
        self._taken = 0
        self._sent = 0
        self._acknowledged = 0
        self._limit = RECEIVE_WINDOW
        """The number of bytes of the stream up to which the receiver has room."""
        self._number = 0
        self._finishing = False
        self._end_sent = False
        self._abandoned = False
        self._over = False
        self._lost: dict[int, tuple[Segment, bytes]] = {}
        self._gap = False
        """Whether a segment was lost that nothing will repeat."""
        self._stalled = -1
        """Time from which on answers are missing; -1 while none is missing."""
        self._interval = 0
        self._repetition: Call | None = None
        self._expiry: Call | None = None
        self._question: Call | None = None
        """The next question for room, while the receiver has none."""
        self._patience = ZERO_WINDOW_PROBE
        # of the receiver's kernel
        self._expected = 0
        self._received = 0
        self._offered = RECEIVE_WINDOW
        self._early: dict[int, tuple[Segment, bytes]] = {}

    @property
    def blocked(self) -> bool:
        """Whether segments are lost now."""
        return self.way.cut or not self._sender.attached or not self._receiver.attached

    @property
    def room(self) -> int:
        """Number of bytes that the sender's kernel takes now."""
        return SEND_BUFFER - (self._taken - self._acknowledged)

    # -- the sender

    def open(self) -> None:
        """Send the last segment of a handshake."""
        self._carry(Segment.OPEN, b"")

    def take(self, data: bytes | memoryview) -> int:
        """Take as many bytes as there is room for; return their number."""
        size = min(self.room, len(data))
        if size <= 0:
            return 0
        self._taken += size
        if not self._outbox and size <= self._limit - self._sent and self.way.segment(size) == size:
            self._sent += size
            self._carry(Segment.DATA, bytes(data[:size]))
        else:
            self._outbox += data[:size]
            self._transmit()
        return size

    def finish(self) -> None:
        """End the stream after the accepted bytes."""
        self._finishing = True
        self._transmit()

    def reset(self) -> None:
        """Drop accepted bytes that were not sent, and reset the other end."""
        if not self._abandoned:
            self.abandon()
            self._carry(Segment.RESET, b"")

    def abandon(self) -> None:
        """Stop sending and repeating. Segments in transit may still arrive."""
        self._gap = self._gap or bool(self._lost)
        self._abandoned = True
        self._finishing = False
        self._outbox.clear()
        self._lost.clear()
        self._answered()
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def end(self) -> None:
        """Stop sending as ``abandon`` does, and drop the segments in transit too."""
        self.abandon()
        self._over = True
        self._early.clear()

    def unanswered(self) -> None:
        """Note that an answer of the receiver is lost."""
        if self._sent != self._acknowledged:
            self._stall()

    def heal(self) -> None:
        """Send lost segments again, at the next time at which a kernel would do so."""
        if self._stalled < 0 or self._repetition is not None:
            return
        at, interval = self._stalled + self._interval, self._interval
        while at < self._scheduler.now:
            interval = min(2 * interval, MAX_RTO)
            at += interval
        self._repetition = self._scheduler.after(at - self._scheduler.now, self._repeat)

    def _transmit(self) -> None:
        outbox = self._outbox
        while outbox and (window := self._limit - self._sent) > 0:
            size = self.way.segment(min(len(outbox), window))
            data = bytes(outbox[:size])
            del outbox[:size]
            self._sent += size
            self._carry(Segment.DATA, data)
        if self._finishing and not outbox and not self._end_sent:
            self._end_sent = True
            self._sent += 1
            self._carry(Segment.FIN, b"")
        if outbox and self._question is None and self._sent == self._acknowledged:
            self._question = self._scheduler.after(self._patience, self._ask)

    def _ask(self) -> None:
        """Ask for room, in case the segment that offers it was lost, or there is no receiver any more."""
        self._question = None
        if self._outbox and self._sent == self._limit:
            self._patience = min(2 * self._patience, MAX_RTO)
            self._question = self._scheduler.after(self._patience, self._ask)
            if self._stalled < 0:
                self.way.send(0, self._probe)
        else:
            self._patience = ZERO_WINDOW_PROBE

    def _carry(self, kind: Segment, data: bytes) -> None:
        number = self._number
        self._number += 1
        self.way.send(len(data), self._arrive, number, kind, data)

    def _stall(self) -> None:
        if self._stalled < 0 and not self._abandoned:
            self._stalled = self._scheduler.now
            self._interval = self.way.retransmission_timeout()
            self._expiry = self._scheduler.after(RETRIES_TIMEOUT, self._expire)

    def _answered(self) -> None:
        """End a stall."""
        self._stalled = -1
        for call in (self._repetition, self._expiry):
            if call is not None:
                call.cancel()
        self._repetition = self._expiry = None

    def _repeat(self) -> None:
        self._repetition = None
        if self.blocked:
            return
        lost, self._lost = self._lost, {}
        for number, (kind, data) in lost.items():
            self.way.send(len(data), self._arrive, number, kind, data)
        if not lost:
            self.way.send(0, self._probe)

    def _expire(self) -> None:
        self._expiry = None
        if self._sent == self._acknowledged and not self._outbox and not self._lost:
            self._answered()  # nothing waits for an answer
        else:
            self._sender.fail(system_error(ETIMEDOUT))

    # -- the link

    def _arrive(self, number: int, kind: Segment, data: bytes) -> None:
        if self._over:
            return
        if self.blocked:
            self._lose(number, kind, data)
        elif number == self._expected:
            self._deliver(kind, data)
            while (segment := self._early.pop(self._expected, None)) is not None:
                self._deliver(*segment)
            self._acknowledge()
        elif kind is Segment.RESET and self._gap:
            self._receiver.arrive(kind, data)
        else:
            self._early[number] = kind, data

    def _lose(self, number: int, kind: Segment, data: bytes) -> None:
        self.way.held += 1
        if self._abandoned:
            self._gap = True
            if kind is Segment.RESET:
                self._receiver.unanswered()
            for early, _ in list(self._early.values()):
                if early is Segment.RESET:  # it waits for what is lost now
                    self._receiver.arrive(early, b"")
        else:
            self._lost[number] = kind, data
            self._stall()

    # -- the receiver

    def consumed(self) -> None:
        """Offer the sender the room of bytes that the process has read, once it is a quarter of the window."""
        if self._received - self._receiver.unread + RECEIVE_WINDOW - self._offered >= RECEIVE_WINDOW // 4:
            self._acknowledge()

    def _deliver(self, kind: Segment, data: bytes) -> None:
        self._expected += 1
        self._received += len(data) + (kind is Segment.FIN)
        self._receiver.arrive(kind, data)

    def _probe(self) -> None:
        if self._over:
            return
        if self.blocked:
            self.way.held += 1
            self._stall()
        elif self._receiver.gone:
            self._receiver.refuse()
        else:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._receiver.gone:
            return
        self._offered = self._received - self._receiver.unread + RECEIVE_WINDOW
        if self._awaited or self._back.cut or self.blocked:
            self._back.send(0, self._acknowledged_to, self._received, self._offered)
        else:  # it would change two numbers half a millisecond later, and cost as much as the bytes
            self._acknowledged = self._received
            self._limit = self._offered

    @property
    def _awaited(self) -> bool:
        """Whether the sender waits for an answer, or would act on one."""
        return (
            self._abandoned
            or self._finishing
            or bool(self._outbox or self._lost)
            or self._stalled >= 0
            or self.room < SEND_BUFFER // 3
        )

    def _acknowledged_to(self, received: int, limit: int) -> None:
        if self._abandoned:
            return
        if self._back.cut or not self._sender.attached or not self._receiver.attached:
            self._back.held += 1
            self._stall()
            return
        if received > self._acknowledged or (received == self._sent and not self._lost):
            self._acknowledged = max(self._acknowledged, received)
            self._answered()
            if self._lost:
                self._stall()
                self.heal()
        self._limit = max(self._limit, limit)
        self._transmit()
        if self._end_sent and self._acknowledged == self._sent:
            self.done = True
            self._sender.finished()
        elif self.room >= SEND_BUFFER // 3:
            self._sender.writable()
