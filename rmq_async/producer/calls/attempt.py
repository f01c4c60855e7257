"""One attempt of a call, which is also the receiver of the broker's response."""

from __future__ import annotations

from typing import Any, Protocol

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...errors import Attempt, RequestTimeoutError
from ...tracebacks import without_frames
from ...transport import Connection
from ..routing import FailureTable, GivenUpError, LatencyTable, Target

__all__ = ["AttemptOwner", "AttemptRecord"]


class AttemptOwner(Protocol):
    """The call that an attempt belongs to. ``faults``: None with ``latency_fault=False``."""

    @property
    def faults(self) -> FailureTable | LatencyTable | None: ...

    def answered(self, record: Any, reply: SendReply) -> None:
        """Takes the broker's response to the attempt."""

    def notify(self) -> None:
        """Wakes the call: the state of an attempt has changed."""


class AttemptRecord:
    """One attempt on one queue; the receiver of its pending request.

    ``open``: it has not ended, and a response may still come. ``started``: ``time.monotonic``. ``elapsed``: seconds until its
    response, failure or timeout, 0.0 before. ``opaque``: 0 until the request is queued on ``connection``. ``maybe_stored``: by
    its error, the broker may have stored the message.
    """

    __slots__ = ("_call", "connection", "elapsed", "error", "maybe_stored", "opaque", "open", "started", "target")

    def __init__(self, call: AttemptOwner, target: Target, started: float) -> None:
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
        """Records the failure and wakes the call. After a timeout the attempt stays open while its request is in the table."""
        self.failed(error)
        self._call.notify()

    def failed(self, error: BaseException) -> None:
        """Records a failure; a timeout does not replace an error that was recorded before."""
        self.elapsed = self.elapsed or machine.monotonic() - self.started
        if isinstance(error, RocketMQError):
            error.broker = error.broker or self.target.broker
            error.address = error.address or self.target.address
            self.maybe_stored = self.maybe_stored or error.maybe_stored
        still_waits = isinstance(error, RequestTimeoutError) and self.connection is not None
        self.open = still_waits and self.connection is not None and self.connection.requests.knows(self.opaque)
        if not self.open:
            self.maybe_stored = getattr(error, "maybe_stored", False)
        self._notify(error)
        if self.error is None or not isinstance(error, RequestTimeoutError):
            self.error = without_frames(error)

    def never_connected(self, error: RequestTimeoutError) -> bool:
        """Replaces the error of an attempt that timed out without a connection; returns whether this is such an attempt.

        ``error``: the new error, that of the call's whole wait.
        """
        if self.connection is not None or not isinstance(self.error, RequestTimeoutError):
            return False
        error.broker, self.error = self.broker, error
        return True

    def answered_with(self, error: RocketMQError) -> None:
        """Records a response that is an error, also one after a timeout; the error decides ``maybe_stored``."""
        self.elapsed = self.elapsed or machine.monotonic() - self.started
        self._notify(error)
        self.error, self.maybe_stored = error, error.maybe_stored

    def given_up(self) -> None:
        """Ends an attempt in flight together with its call: removes its request from the table, so that no response reaches it."""
        if self.open and self.connection is not None:
            self.open = False
            self.connection.requests.forget(self.opaque)
            self.elapsed = self.elapsed or machine.monotonic() - self.started
            self._notify(GivenUpError())

    def _notify(self, error: BaseException) -> None:
        """Reports the first failure of the attempt to the fault table; later ones say nothing more about the broker."""
        if self.error is None and self._call.faults is not None:
            self._call.faults.failed(self.target.broker, error, self.elapsed, machine.monotonic())

    def public(self) -> Attempt:
        return Attempt(self.target.queue, self.target.address, self.elapsed, self.error, self.maybe_stored)
