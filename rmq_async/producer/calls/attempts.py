"""The record of one attempt, and the attempts of a call in bounded memory, because a call may make thousands of attempts.

The first and the newest attempts are kept, and attempts that still wait for a response (at most one per broker). For the other
attempts, only the values that decisions need remain: their number, their errors and brokers, and whether one of them may have
stored the message.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Final

from rmq_protocol.errors import RocketMQError
from rmq_protocol.send_codec import SendReply

from ... import machine
from ...errors import Attempt, RequestTimeoutError
from ...tracebacks import without_frames
from ...transport import Connection
from ..routing import FailureTable, GivenUpError, LatencyTable, Target

FIRST_KEPT: Final = 8
NEWEST_KEPT: Final = 8


class AttemptRecord:
    """One attempt on one queue. The object is also the receiver of the broker's response.

    Attributes:
        open: True while a response to the attempt may still arrive.
        elapsed: Seconds from the start to the response, failure or timeout; 0.0 until then.
        opaque: Number of the request on ``connection``; 0 until the request is queued there.
        maybe_stored: True if the broker may have stored the message although the attempt has failed.
    """

    __slots__ = (
        "_answered", "_changed", "_faults", "connection", "elapsed", "error", "maybe_stored", "opaque", "open", "started",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        started: float,
        faults: FailureTable | LatencyTable | None,
        answered: Callable[[AttemptRecord, SendReply], None],
        changed: Callable[[], None],
    ) -> None:
        """Begin an attempt.

        Args:
            started: Monotonic time at which the attempt began.
            faults: None with ``latency_fault=False``.
            answered: Called with the broker's response to the attempt.
            changed: Called when the attempt has failed, to wake the call.
        """
        self._faults = faults
        self._answered = answered
        self._changed = changed
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
        self._answered(self, reply)

    def set_exception(self, error: BaseException) -> None:
        """Record the failure and wake the call. After a timeout, the attempt stays open while its request is in the table."""
        self.failed(error)
        self._changed()

    def failed(self, error: BaseException) -> None:
        """Record a failure. If an error was recorded before, a timeout does not replace it."""
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
        """Replace the error if the attempt timed out without a connection. Return whether the error was replaced.

        Args:
            error: The new error, which covers the whole time that the call waited.
        """
        if self.connection is not None or not isinstance(self.error, RequestTimeoutError):
            return False
        error.broker, self.error = self.broker, error
        return True

    def answered_with(self, error: RocketMQError) -> None:
        """Record an error response, even if it arrives after a timeout. Take ``maybe_stored`` from the error."""
        self.elapsed = self.elapsed or machine.monotonic() - self.started
        self._notify(error)
        self.error, self.maybe_stored = error, error.maybe_stored

    def given_up(self) -> None:
        """End the attempt because its call has ended. If it is open, remove its request from the request table, so that a late
        response is ignored.
        """
        if self.open and self.connection is not None:
            self.open = False
            self.connection.requests.forget(self.opaque)
            self.elapsed = self.elapsed or machine.monotonic() - self.started
            self._notify(GivenUpError())

    def _notify(self, error: BaseException) -> None:
        """Report the first failure of the attempt to the fault table. Later failures say nothing more about the broker."""
        if self.error is None and self._faults is not None:
            self._faults.failed(self.target.broker, error, self.elapsed, machine.monotonic())

    def public(self) -> Attempt:
        return Attempt(self.target.queue, self.target.address, self.elapsed, self.error, self.maybe_stored)


class Attempts:
    """The attempts of one call, in the order in which they began.

    Attributes:
        made: Number of attempts, including attempts that are no longer kept.
        repeated: Number of these attempts that were made on a broker that had been tried before.
        tried: The brokers of all attempts.
    """

    __slots__ = (
        "_dropped_counted", "_dropped_kinds", "_dropped_maybe_stored", "_first", "_newest", "made", "repeated", "tried",
    )  # fmt: skip

    def __init__(self, *records: AttemptRecord) -> None:
        self._first: list[AttemptRecord] = []
        self._newest: deque[AttemptRecord] = deque()
        self._dropped_counted = 0
        self._dropped_kinds: Counter[str] = Counter()
        self._dropped_maybe_stored = False
        self.made = 0
        self.repeated = 0
        self.tried: set[str] = set()
        for record in records:
            self.add(record)

    def __iter__(self) -> Iterator[AttemptRecord]:
        """Iterate over the kept attempts."""
        yield from self._first
        yield from self._newest

    def __len__(self) -> int:
        """Return the number of kept attempts."""
        return len(self._first) + len(self._newest)

    @property
    def newest(self) -> AttemptRecord | None:
        if self._newest:
            return self._newest[-1]
        return self._first[-1] if self._first else None

    @property
    def counted(self) -> int:
        """The number of attempts that count towards ``retries`` (``uses_retry``). A call may make ``retries`` plus one of them."""
        return self._dropped_counted + sum(_counts(record) for record in self)

    @property
    def maybe_stored(self) -> bool:
        return self._dropped_maybe_stored or any(record.maybe_stored for record in self)

    def kinds(self) -> Counter[str]:
        """Count all attempts by the name of their error. Attempts without an error are counted as "no answer"."""
        return self._dropped_kinds + Counter(kind_of(record.error) for record in self)

    @property
    def unanswered(self) -> set[str]:
        """The brokers of attempts that still wait for a response."""
        return {record.broker for record in self if record.open}

    def add(self, record: AttemptRecord) -> None:
        """Add the newest attempt. If too many are kept, drop an old attempt that does not wait for a response."""
        self.made += 1
        self.repeated += record.broker in self.tried
        self.tried.add(record.broker)
        if len(self._first) < FIRST_KEPT:
            self._first.append(record)
            return
        self._newest.append(record)
        if len(self._newest) > NEWEST_KEPT:
            self._drop_one()

    def _drop_one(self) -> None:
        for index, record in enumerate(self._newest):
            if not record.open:
                self._dropped_counted += _counts(record)
                self._dropped_kinds[kind_of(record.error)] += 1
                self._dropped_maybe_stored |= record.maybe_stored
                del self._newest[index]
                return


def _counts(record: AttemptRecord) -> bool:
    return record.error is None or uses_retry(record.error)


def kind_of(error: BaseException | None) -> str:
    """Return the name under which ``Attempts.kinds`` counts an attempt that ended with ``error``."""
    return type(error).__name__ if error is not None else "no answer"


def uses_retry(error: BaseException) -> bool:
    """Return whether an attempt that ended with ``error`` counts towards ``retries``."""
    return not isinstance(error, RocketMQError) or error.uses_retry
