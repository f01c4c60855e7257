"""Pending requests, and a pure function that finds the late ones.

Each entry has two deadlines. At the first one the *attempt* has failed and its receiver gets the error. Until the second one, the
end of the *call*, the entry stays if its frame was written, because a late answer may still say "stored". In most entries both are
the same.

The table is scanned when the earliest deadline is due, not for each message: 1024 entries cost 20 us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec

from rmq_protocol.constants import RequestCode

__all__ = ["HeldFrame", "OnewayCallback", "Pending", "Receiver", "Sendable", "overdue", "request_name"]


class Receiver(Protocol):
    """The part of asyncio.Future's interface that the transport uses for an answer."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: Any, /) -> None: ...


class Sendable(Protocol):
    """The values that the frame of a single message needs, from the message or from its encoded form."""

    @property
    def body(self) -> bytes: ...
    @property
    def flag(self) -> int: ...


class Pending(msgspec.Struct):
    """A pending request.

    Attributes:
        deadline: End of the attempt and of the call (monotonic).
        call_deadline: See ``deadline``.
        typed: The request is a send, and the receiver gets a SendReply instead of a RemotingCommand.
        long_poll: The peer may hold the request, so its silence does not mean that it is dead.
        owner: The object that may end all its requests together (``RequestTable.abandon``).
        sequence: Number in the order of writing; 0 while the frame is held back, -1 from when it got more time after a blocked
            loop.
        opaque: Set for sends.
        pull: The receiver gets a PullReply if ``decode_pull_reply`` reads the answer.
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
"""The callback for a one-way frame that has been written or dropped, and its argument."""


class HeldFrame(NamedTuple):
    """A frame that is held back: that of the request ``pending``, or a one-way frame with the callback ``oneway``."""

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
    """Return the entries whose next deadline has come, and the earliest deadline of the others (infinity without others)."""
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
    """Return RocketMQ's name of a request code, or its number."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
