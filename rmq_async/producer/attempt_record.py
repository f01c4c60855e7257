"""One attempt of a call, and the receiver of its answer."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ..errors import Attempt, RequestTimeoutError, without_frames
from ..transport import Connection
from .faults import GivenUpError
from .lanes import Target

if TYPE_CHECKING:
    from .call import SendCall

__all__ = ["AttemptRecord"]


class AttemptRecord:
    """One attempt. ``open``: its answer may still come. It is also the receiver of its table entry."""

    __slots__ = ("_call", "connection", "elapsed", "error", "maybe_stored", "opaque", "open", "started", "target")

    def __init__(self, call: SendCall[Any], target: Target, started: float) -> None:
        self._call = call
        self.target = target
        self.started = started
        self.elapsed = 0.0
        self.error: BaseException | None = None
        self.maybe_stored = False
        self.open = True
        self.connection: Connection | None = None
        self.opaque = 0

    @property
    def broker(self) -> str:
        return self.target.broker

    def done(self) -> bool:
        return not self.open

    def set_result(self, reply: SendReply) -> None:
        self.open = False
        self._call.answered(self, reply)

    def set_exception(self, error: BaseException) -> None:
        """An attempt that is too late stays open until its entry leaves the table, at the end of the call."""
        self.failed(error)
        self._call.notify()

    def failed(self, error: BaseException) -> None:
        self.elapsed = self.elapsed or monotonic() - self.started
        if isinstance(error, RocketMQError):
            error.broker = error.broker or self.target.broker
            error.address = error.address or self.target.address
            self.maybe_stored = self.maybe_stored or error.maybe_stored
        still_waits = isinstance(error, RequestTimeoutError) and self.connection is not None
        self.open = still_waits and self.connection is not None and self.connection.knows(self.opaque)
        if not self.open:
            self.maybe_stored = getattr(error, "maybe_stored", False)
        self._tell(error)
        if self.error is None or not isinstance(error, RequestTimeoutError):
            self.error = without_frames(error)

    def answered_with(self, error: RocketMQError) -> None:
        """A late or last answer that is an error: now it is known that nothing was stored."""
        self.elapsed = self.elapsed or monotonic() - self.started
        self._tell(error)
        self.error, self.maybe_stored = error, error.maybe_stored

    def given_up(self) -> None:
        """The call is over."""
        if self.open and self.connection is not None:
            self.open = False
            self.connection.forget(self.opaque)
            self.elapsed = self.elapsed or monotonic() - self.started
            self._tell(GivenUpError())

    def _tell(self, error: BaseException) -> None:
        """What the attempt says about its broker, of which the first failure decides."""
        if self.error is None and self._call.faults is not None:
            self._call.faults.failed(self.target.broker, error, self.elapsed, monotonic())

    def public(self) -> Attempt:
        return Attempt(self.target.queue, self.target.address, self.elapsed, self.error, self.maybe_stored)
