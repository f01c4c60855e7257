"""Pending requests, a pure function that finds late requests, and the timer of a connection's deadlines.

Each pending request has two deadlines. At the first one, the *attempt* has failed, and the receiver gets the error. If the frame
was written, the request stays in the table until the second one, the end of the *call*, because a late response may still say
"stored". For most requests, both deadlines are equal.

The table is scanned when the earliest deadline is due, not for each message: a scan of 1024 requests costs 20 us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context
from math import inf
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from rmq_protocol.constants import RequestCode

from .. import machine


class Receiver(Protocol):
    """The part of asyncio.Future's interface that the transport uses to pass a response on."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


class Pending(msgspec.Struct):
    """A pending request.

    Attributes:
        deadline: Monotonic time at which the attempt ends.
        call_deadline: Monotonic time at which the call ends.
        typed: True if the request is a send, whose receiver gets a SendReply instead of a RemotingCommand.
        long_poll: True if the peer may hold the request, so a missing response does not mean that the peer is dead.
        owner: The object that can end all its requests together (``RequestTable.abandon``).
        sequence: Position in the order of writing. 0 while the frame is held back; -1 while it is held back and its deadline was
            extended because the event loop was blocked.
        opaque: The number that identifies the request and its response; set for sends only.
        pull: True if the request is a pull. Its receiver gets a PullReply if ``decode_pull_reply`` can read the response, else a
            RemotingCommand.
    """

    receiver: Receiver
    deadline: float
    call_deadline: float
    code: int
    owner: object = None
    sequence: int = 0
    opaque: int = 0
    typed: bool = True
    long_poll: bool = False
    pull: bool = False


OnewayCallback = tuple[Callable[[int], None], int]
"""The callback that is called when a one-way frame has been written or dropped, and its argument."""


class HeldFrame(NamedTuple):
    """A frame that is held back: either the frame of the request ``pending``, or a one-way frame with the callback ``oneway``."""

    parts: bytes | list[bytes]
    pending: Pending | None
    oneway: OnewayCallback | None = None

    @property
    def owner(self) -> object:
        return self.pending.owner if self.pending is not None else None

    @property
    def size(self) -> int:
        return len(self.parts) if isinstance(self.parts, bytes) else sum(map(len, self.parts))


def overdue(entries: Iterable[tuple[int, Pending]], now: float) -> tuple[list[tuple[int, Pending]], float]:
    """Return the entries whose next deadline has passed, and the earliest deadline of the others (infinity if there are none)."""
    late: list[tuple[int, Pending]] = []
    earliest = inf
    for opaque, entry in entries:
        deadline = entry.deadline
        if deadline <= now:
            late.append((opaque, entry))
        elif deadline < earliest:
            earliest = deadline
    return late, earliest


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or "request" and the number if the code is unknown."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"


# The deadline timer of a connection: one timer, set for the earliest deadline in the request table.
#
# The same timer detects a dead peer, from which no byte has arrived for ``dead_after`` seconds. These seconds are counted from the
# first request that was written after the last received byte; long polls do not count. After the loop was blocked, requests get a
# grace period before they time out, because their responses may be in the socket: the loop first reads the bytes that are there.
# The number and the length of consecutive grace periods are limited.

SCAN_GRAIN: Final = 0.02
"""Minimum seconds between a scan and the next scan that it schedules, so that one scan ends several late requests."""
BLOCKED_AFTER: Final = 0.02
"""If a scan runs more than this many seconds late, the loop was blocked."""
GRACE_STEP: Final = 0.01
MAX_GRACE: Final = 0.5
"""Maximum seconds of one grace period."""
FULL_FROM: Final = 32 * 1024
"""With at least this many unread bytes in the socket, its receive window may be full, and more responses may wait in the peer's
kernel.

Linux opens a window of 64 KiB, of which the kernel's own accounting takes a part, and widens it for a process that reads.
"""
MAX_DELAY: Final = 1.0
"""Maximum seconds of consecutive grace periods while the socket is empty. Without this limit, no request would time out in a
service that blocks the loop in every iteration."""
MAX_GRACES: Final = 32
"""Maximum number of consecutive grace periods: an iteration of the loop reads 256 KiB, and the kernel keeps up to 8 MiB."""
GRACE_AFTER_WRITE: Final = 0.1
"""Seconds that are allowed for the response to a frame that was written after its deadline because the loop was blocked."""


class Deadlines:
    """The timer of a connection's deadlines.

    Code that runs for each message or each read uses the public attributes directly, to save calls.

    Args:
        flush: Writes the gathered frames.
        expire: Ends the requests whose deadlines are at or before the given time. Returns the earliest deadline of the other
            requests (infinity if there are none).
        die: Closes the connection as dead.
        unread: Returns the number of unread bytes in the socket.
    """

    __slots__ = (
        "_die", "_expire", "_flush", "_grace", "_graces", "_loop", "_next_step", "_timer", "_unread", "at", "dead_after",
        "received", "silent_since",
    )  # fmt: skip

    def __init__(
        self,
        dead_after: float,
        flush: Callable[[], None],
        expire: Callable[[float], float],
        die: Callable[[], None],
        unread: Callable[[], int],
    ) -> None:
        self.dead_after = dead_after
        """Seconds after ``silent_since`` after which the peer is considered dead, if no byte arrives."""
        self.at = inf
        """The time for which the timer is set. The caller must call ``arm`` for a request with an earlier deadline. -infinity after
        ``stop``."""
        self.silent_since = inf
        """Time of the first write of a request since data was last received; long polls do not count. Infinity if there was no such
        write."""
        self.received = 0
        """Number of bytes received."""
        self._flush = flush
        self._expire = expire
        self._die = die
        self._unread = unread
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._grace: tuple[float, float, int] | None = None
        """The current grace period: its start, the value of ``received`` that ends it, and that value at the last check."""
        self._graces = (0, inf)
        """Number of grace periods since the last scan that ended late requests, and the start of the first of them."""
        self._next_step = inf
        """Time of the next check of the grace period."""

    def arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = machine.monotonic()
        self.at = max(at, now)
        # An empty context: each scan sets the timer of the next scan and would pass the context of one caller on for ever.
        self._timer = self._loop.call_later(self.at - now, self._scan, context=Context())

    def stop(self) -> None:
        """Cancel the timer and start it no more."""
        self.at = -inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _scan(self) -> None:
        now = machine.monotonic()
        dead = now - self.silent_since >= self.dead_after
        if (dead or now - self.at > BLOCKED_AFTER) and self._more_to_read(now):
            self._next_step = now + GRACE_STEP
            self._timer = self._loop.call_later(GRACE_STEP, self._scan)
            return
        self._timer = None
        self.at = inf
        self._grace = None
        self._graces = (0, inf)
        if dead:
            self._die()
            return
        self._flush()  # gathered frames will be written in any case, so their requests must not count as unwritten
        earliest = min(self._expire(now), self.silent_since + self.dead_after)
        if earliest < self.at:
            self.arm(max(earliest, now + SCAN_GRAIN))

    def _more_to_read(self, now: float) -> bool:
        """Return whether bytes may still be unread that were in the socket when the loop was blocked.

        Return False if the limits of grace periods are reached.
        """
        if self._grace is None or now - self._next_step > BLOCKED_AFTER:  # blocked, or blocked again
            self._flush()
            unread, (begun, since) = self._unread(), self._graces
            if begun >= MAX_GRACES or (not unread and now - since > MAX_DELAY):
                return False
            self._graces = (begun + 1, min(since, now))
            self._grace = (now, self.received + unread if unread < FULL_FROM else inf, -1)
            return True
        began, whole, before = self._grace
        if self.received >= whole or self.received == before or now - began > MAX_GRACE:
            return False
        self._grace = (began, whole, self.received)
        return True
