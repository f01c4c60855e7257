"""One direction of a stream. It behaves like TCP between two kernels, but headers and acknowledgements take no bandwidth.

Bytes go from the sender's kernel to the receiver's kernel in segments. Each segment has its own latency, and numbers keep the
segments in order. Both kernels hold a bounded number of bytes. A segment that a cut link loses stays with its sender, which
retransmits it at growing intervals. Only the first retransmission after the end of the cut is simulated. An acknowledgement
that only frees the sender's buffer takes effect at once, without an event.
"""

from __future__ import annotations

from enum import IntEnum
from errno import ETIMEDOUT
from typing import Final, Protocol

from ..scheduler import Call, Scheduler
from .link import Way, system_error

SEND_BUFFER: Final = 256 * 1024
"""Maximum number of bytes of one stream that a kernel accepts before the receiver's kernel has them."""
RECEIVE_WINDOW: Final = 256 * 1024
"""Maximum number of bytes of one stream that a kernel keeps for a process that does not read."""
MAX_RTO: Final = 120_000_000_000
"""Maximum number of nanoseconds between two retransmissions of a segment."""
ZERO_WINDOW_PROBE: Final = 200_000_000
"""Nanoseconds until the first probe of a zero window. The interval doubles with each further probe."""
RETRIES_TIMEOUT: Final = 924_600_000_000
"""Nanoseconds without an acknowledgement after which a kernel gives up a stream, as Linux does with ``tcp_retries2`` = 15."""


class Segment(IntEnum):
    """The kinds of segments. OPEN is the last segment of a handshake."""

    OPEN = 0
    DATA = 1
    FIN = 2
    RESET = 3


class Sender(Protocol):
    attached: bool

    def writable(self) -> None:
        """Called when the kernel accepts more bytes."""

    def finished(self) -> None:
        """Called when the other kernel has received every byte and the end of the stream."""

    def fail(self, error: OSError) -> None:
        """Called when the kernel gives up the stream."""


class Receiver(Protocol):
    attached: bool
    gone: bool
    unread: int

    def arrive(self, kind: Segment, data: bytes) -> None:
        """Receive a segment. Segments arrive in order."""

    def refuse(self) -> None:
        """Respond with a reset to a segment whose stream no longer exists."""

    def unanswered(self) -> None:
        """Called when a reset that should have ended the receiver's side is lost."""


class Flow:
    """The bytes of a stream in one direction.

    Args:
        way: The direction of the link that carries the bytes.
        back: The opposite direction of the link, for the receiver's acknowledgements.
    """

    def __init__(self, scheduler: Scheduler, sender: Sender, receiver: Receiver, way: Way, back: Way) -> None:
        self.way = way
        self.done = False
        """Whether the other kernel has received all bytes and the end of the stream."""
        self._scheduler = scheduler
        self._sender = sender
        self._receiver = receiver
        self._back = back
        # state of the sender's kernel
        self._outbox = bytearray()
        self._taken = 0
        self._sent = 0
        self._acknowledged = 0
        self._limit = RECEIVE_WINDOW
        """The position in the stream up to which the receive window permits sending."""
        self._number = 0
        self._finishing = False
        self._end_sent = False
        self._abandoned = False
        self._over = False
        self._lost: dict[int, tuple[Segment, bytes]] = {}
        self._gap = False
        """Whether a segment was lost that will not be retransmitted."""
        self._stalled = -1
        """Time since which acknowledgements are missing. -1 while none is missing."""
        self._interval = 0
        self._repetition: Call | None = None
        self._expiry: Call | None = None
        self._question: Call | None = None
        """The next window probe, while the receive window is full."""
        self._patience = ZERO_WINDOW_PROBE
        # state of the receiver's kernel
        self._expected = 0
        self._received = 0
        self._offered = RECEIVE_WINDOW
        self._early: dict[int, tuple[Segment, bytes]] = {}

    @property
    def blocked(self) -> bool:
        """Whether segments are currently lost."""
        return self.way.cut or not self._sender.attached or not self._receiver.attached

    @property
    def room(self) -> int:
        """Number of bytes that the sender's kernel currently accepts."""
        return SEND_BUFFER - (self._taken - self._acknowledged)

    # -- the sender

    def open(self) -> None:
        """Send the last segment of a handshake."""
        self._carry(Segment.OPEN, b"")

    def take(self, data: bytes | memoryview) -> int:
        """Accept as many bytes as fit into the send buffer. Return their number."""
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
        """Drop the accepted bytes that were not sent, and reset the other end."""
        if not self._abandoned:
            self.abandon()
            self._carry(Segment.RESET, b"")

    def abandon(self) -> None:
        """Stop sending and retransmitting. Segments in transit may still arrive."""
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
        """Stop sending as ``abandon`` does, and also drop the segments in transit."""
        self.abandon()
        self._over = True
        self._early.clear()

    def unanswered(self) -> None:
        """Note that an acknowledgement of the receiver was lost."""
        if self._sent != self._acknowledged:
            self._stall()

    def heal(self) -> None:
        """Retransmit lost segments at the next time at which a kernel would do so."""
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
        """Send a window probe, in case the window update was lost or the receiver no longer exists."""
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
        """End a stall, because an acknowledgement has arrived or none is needed."""
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
            self._answered()  # no segment waits for an acknowledgement
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
                if early is Segment.RESET:  # the reset waits for the lost segments
                    self._receiver.arrive(early, b"")
        else:
            self._lost[number] = kind, data
            self._stall()

    # -- the receiver

    def consumed(self) -> None:
        """Open the window by the bytes that the process has read, once they amount to a quarter of the window."""
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
        else:  # an event would only change two numbers 0.5 ms later, and cost as much as the bytes
            self._acknowledged = self._received
            self._limit = self._offered

    @property
    def _awaited(self) -> bool:
        """Whether the sender waits for an acknowledgement, or would act on one."""
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
