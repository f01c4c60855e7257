"""The errors of the client.

Attributes of their classes decide about retries.

``retriable``: another attempt, on another broker if there is one, may succeed. ``maybe_stored``: the request may have reached
the broker, so the message may be stored although the call failed. ``uses_retry``: the attempt is one that ``retries``
counts. About a broker's answer ``ProducerConfig.retry_codes`` decides, if no ``never_retried`` or ``always_retried`` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import (
    CorruptMessageError,
    FrameTooLargeError,
    InvalidMessageError,
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    RocketMQError,
    printable,
)
from rmq_protocol.message import MessageQueue

__all__ = [
    "Attempt",
    "AuthenticationError",
    "BackpressureError",
    "BrokerError",
    "BrokerNotFoundError",
    "BrokerSystemError",
    "ClientStateError",
    "ConfigError",
    "ConnectError",
    "ConnectionLostError",
    "CorruptMessageError",
    "FlowControlError",
    "ForbiddenError",
    "ForkedError",
    "FrameTooLargeError",
    "GoAwayError",
    "GroupNotOnlineError",
    "HandlerTimeoutError",
    "InvalidGroupError",
    "InvalidMessageError",
    "LocalProtocolError",
    "MessageIllegalError",
    "NameServerError",
    "NoPermissionError",
    "NotEnoughReplicasError",
    "OffsetRangeError",
    "PermissionDeniedError",
    "ProtocolError",
    "QueryNotFoundError",
    "QueueLostError",
    "QueueNotExistError",
    "RemoteProtocolError",
    "ReplyTimeoutError",
    "RequestTimeoutError",
    "RocketMQError",
    "SelectorError",
    "SendError",
    "ServiceNotAvailableError",
    "SubscriptionConflictError",
    "SystemBusyError",
    "TopicNotExistError",
    "TopicNotFoundError",
    "TransactionError",
    "WrongLoopError",
]

_LONGEST_REMARK = 1024
_KNOWN_CODES = frozenset(int(code) for code in ResponseCode)
_NO_QUEUE = re.compile(
    r"request queueId\[(-?\d{1,10})\] is illegal, .{0,40}topicName=(.{1,255}), readQueueNums=(\d{1,10}), writeQueueNums=(\d{1,10})"
)


class ConfigError(RocketMQError, ValueError):
    """A setting or an argument is wrong, or contradicts another one."""


class SubscriptionConflictError(ConfigError):
    """Members of one consumer group differ in subscriptions, message model or mode: they may miss messages or get them twice."""


class InvalidGroupError(ConfigError, InvalidMessageError):
    """The name of a group is not a str, is blank or too long, or has a character that is not allowed (-1, as in Java's
    ``Validators``).
    """

    code = -1


class SelectorError(RocketMQError):
    """A selector failed, cannot use the key, or returned none of the queues given to it; or ``queue`` is of another topic."""


class ForbiddenError(RocketMQError):
    """A ``check_forbidden`` hook refused an attempt, or raised another error (``__cause__``); that attempt was not sent."""


class ClientStateError(RocketMQError):
    """The call is not possible in the present state, or a stop or a cancellation ended it.

    The message gives the state, for example: the client is not started or runs already, the group has members, the delivery is
    over.
    """


class ForkedError(RocketMQError):
    """The client was started before ``os.fork()`` and its sockets belong to the parent; make a new one in the child."""


class WrongLoopError(RocketMQError):
    """The client, outbox or iterator belongs to another event loop than this call."""


class BackpressureError(RocketMQError):
    """The call's timeout passed before the message could be sent: other calls had too many unfinished messages or bytes,
    earlier ordered sends were unfinished, or a broker did not keep up with one-way messages. The message was not sent.
    """


class _LastingError(RocketMQError):
    def __init__(self, message: str = "", *, permanent: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.permanent = permanent


class NameServerError(_LastingError):
    """No name server is configured, or none gave a usable answer in time (10004).

    For calls that all name servers must answer: at least one did not. ``permanent``: True if later calls fail too, because all
    addresses belong to brokers.
    """

    code = 10004


class TopicNotFoundError(RocketMQError):
    """The topic has no route or no queue for the call (10005, or 17 from a broker), or no topic matches a pattern (10005)."""

    code = 10005


class BrokerNotFoundError(RocketMQError):
    """There is no broker to ask (10003), for example because none has the name, its address or its master's is not known, or the
    topic has no queue there that the call may use.
    """

    code = 10003
    retriable = True


class ConnectError(_LastingError):
    """No connection to ``address`` could be made; nothing was sent (10001).

    ``__cause__``: the system's error, if it is one. ``permanent``: True if every later attempt fails too, because the address
    is malformed or a setting forbids it.
    """

    code = 10001
    retriable = True

    @property
    def uses_retry(self) -> bool:
        return self.permanent


class _UnansweredError(RocketMQError):
    """No answer came.

    Args:
        maybe_stored: True if the request had been written, so that the broker may have handled it.
    """

    retriable = True

    def __init__(self, message: str = "", *, maybe_stored: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.maybe_stored = maybe_stored

    @property
    def uses_retry(self) -> bool:
        return self.maybe_stored


class ConnectionLostError(_UnansweredError):
    """The connection closed before the answer came. ``maybe_stored``: True if the request had been written."""


class RequestTimeoutError(_UnansweredError, TimeoutError):
    """The time was over before the answer came or the work was done (10002).

    ``maybe_stored``: the broker may have handled it.
    """

    code = 10002


class BrokerError(RocketMQError):
    """A server answered with an error.

    Args:
        code: Its ResponseCode.
        remark: Its message.
        request: The request, by name.
    """

    response_code: ClassVar[int | None] = None
    never_retried: ClassVar[bool] = False
    always_retried: ClassVar[bool] = False
    """Makes a send retry without regard to ``retry_codes``, where the call may go to another queue."""
    backs_off: ClassVar[bool] = False
    """Makes a retry wait a little first: the broker said that it has too much to do."""

    def __init__(self, remark: str = "", *, code: int | None = None, request: str = "", **details: Any) -> None:
        number = code if code is not None else self.response_code
        name = ResponseCode(number).name if number in _KNOWN_CODES else "unknown code"
        subject = f"{request}: " if request else ""
        super().__init__(f"{subject}{number} {name}: {printable(remark, _LONGEST_REMARK)}", code=number, **details)
        self.remark = remark
        self.request = request


class BrokerSystemError(BrokerError):
    """The server failed (1); its remark gives the reason."""

    response_code = ResponseCode.SYSTEM_ERROR
    retriable = True


class NotEnoughReplicasError(BrokerSystemError):
    """The broker has fewer in-sync replicas than ``minInSyncReplicas`` (1): it has not stored the message.

    A send tries again within its ``timeout``. Brokers that replicate by DLedger give the same answer after they have stored the
    message; their answer raises a BrokerSystemError with ``maybe_stored`` instead.
    """

    always_retried = True

    @property
    def uses_retry(self) -> bool:
        return False


class SystemBusyError(BrokerError):
    """The broker was too busy for the request (2), for example its send queue or page cache; it stored no message."""

    response_code = ResponseCode.SYSTEM_BUSY
    retriable = True
    backs_off = True


class RequestCodeNotSupportedError(BrokerError):
    """The server does not know the request, or does not accept it from clients (3)."""

    response_code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class MessageIllegalError(BrokerError):
    """The broker refused a message (13), for example because it is too large, or an acknowledgement of a wrong queue or offset."""

    response_code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailableError(BrokerError):
    """The broker cannot store now (14), for example because it is a replica, shuts down, or its disk is full."""

    response_code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class VersionNotSupportedError(BrokerError):
    """The broker wants a client of another version (15)."""

    response_code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermissionError(BrokerError):
    """The broker does not permit the request (16), for example because the broker or the topic is not writable or readable."""

    response_code = ResponseCode.NO_PERMISSION
    retriable = True


class AuthenticationError(NoPermissionError):
    """The server does not accept the credentials (16, or 1 from brokers of 4.x; recognized by the remark)."""

    retriable = False
    never_retried = True


class PermissionDeniedError(NoPermissionError):
    """The user lacks the permission for the request (16, or 1 from brokers of 4.x; recognized by the remark)."""

    retriable = False
    never_retried = True


class TopicNotExistError(BrokerError, TopicNotFoundError):
    """The broker does not have the topic, and does not create it for this request (17)."""

    response_code = ResponseCode.TOPIC_NOT_EXIST
    retriable = True


class QueryNotFoundError(BrokerError):
    """The message, offset or value does not exist (22)."""

    response_code = ResponseCode.QUERY_NOT_FOUND


class SubscriptionGroupNotExistError(BrokerError):
    """The broker does not have the consumer group, and does not create it for this request (26)."""

    response_code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class InvalidParameterError(BrokerError):
    """A field of the request has a value that the broker does not accept (29)."""

    response_code = ResponseCode.INVALID_PARAMETER


class QueueNotExistError(InvalidParameterError):
    """The topic has no queue of that number on the broker (29, or 1 from brokers of 4.x); no message was stored.

    Attributes:
        queue_id: The requested number.
        queues: The number of read queues or of write queues, the larger one. Both are None if the remark, by which the error is
            recognized, does not report them.
    """

    retriable = True
    always_retried = True

    def __init__(self, remark: str = "", *, broker: str | None = None, **details: Any) -> None:
        super().__init__(remark, broker=broker, **details)
        found = _NO_QUEUE.match(remark)
        self.queue_id: int | None = None
        self.queues: int | None = None
        if found is not None:
            self.queue_id, self.queues = int(found[1]), max(int(found[3]), int(found[4]))
            missing = f"topic {printable(found[2], 300)} has no queue {self.queue_id} on {broker or 'the broker'}"
            there = f"it has {self.queues} there, numbered from 0; fetch_publish_queues() names the queues that can be sent to"
            self.args = (f"{missing}: {there} ({self.args[0]})",)

    @property
    def uses_retry(self) -> bool:
        return False


class NoBuyerIdError(BrokerError):
    """The broker, in unit mode, misses a buyer's id (204)."""

    response_code = ResponseCode.NO_BUYER_ID
    retriable = True


class NotInCurrentUnitError(BrokerError):
    """The message belongs to another unit than the broker's, in unit mode (205)."""

    response_code = ResponseCode.NOT_IN_CURRENT_UNIT
    retriable = True


class GroupNotOnlineError(BrokerError):
    """No client of the group is connected (206)."""

    response_code = ResponseCode.CONSUMER_NOT_ONLINE


class FlowControlError(BrokerError):
    """The server limits the requests of this client (215)."""

    response_code = ResponseCode.FLOW_CONTROL
    backs_off = True


class NotLeaderForQueueError(BrokerError):
    """The queue of a static topic is led by another broker (501)."""

    response_code = ResponseCode.NOT_LEADER_FOR_QUEUE


class IllegalOperationError(BrokerError):
    """The broker refuses the operation (604), for example a recall or the end of a transaction that comes too late."""

    response_code = ResponseCode.ILLEGAL_OPERATION


class GoAwayError(BrokerError):
    """The server shuts down gracefully and asks its clients to use another server (1500)."""

    response_code = ResponseCode.GO_AWAY
    retriable = True

    @property
    def uses_retry(self) -> bool:
        return False


class OffsetRangeError(BrokerError):
    """The offset lies outside what the queue holds (21), or the messages there were deleted, or replaced, before they were read.

    Args:
        min_offset: The first offset of the queue, 0 if unknown; a broker that deletes messages corrects it some seconds later.
        max_offset: The offset after the last message of the queue, 0 if unknown.
        lost: Offsets that were deleted before they were read, where these are known.
    """

    response_code = ResponseCode.PULL_OFFSET_MOVED

    def __init__(
        self, remark: str = "", *, min_offset: int = 0, max_offset: int = 0, lost: tuple[range, ...] = (), **details: Any
    ) -> None:
        super().__init__(remark, **details)
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.lost = lost


class TransactionError(RocketMQError):
    """The half message is stored; COMMIT or ROLLBACK was refused or not confirmed.

    Unless it took effect, the broker will check.

    Args:
        result: The TransactionSendResult, with ``local_status``.
        maybe_ended: True if the broker may have ended the transaction nevertheless. ``code`` and ``remark`` are from the
            refusal; None and "" if there was no refusal.
        maybe_stored: True if the outcome was COMMIT: consumers may see the message now, or after ``check`` has returned COMMIT.
    """

    def __init__(
        self,
        message: str = "",
        *,
        result: Any = None,
        maybe_ended: bool = False,
        maybe_stored: bool = False,
        remark: str = "",
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.result = result
        self.maybe_ended = maybe_ended
        self.maybe_stored = maybe_stored
        self.remark = remark


class ReplyTimeoutError(RocketMQError, TimeoutError):
    """The request is stored, but its reply did not arrive, or was not decompressed, in time (10006)."""

    code = 10006


class HandlerTimeoutError(RocketMQError, TimeoutError):
    """A handler ran for longer than its subscription's ``timeout``, or messages taken by an iterator or by ``receive()`` were in
    hand for longer. The attempt counts as failed.
    """


class QueueLostError(RocketMQError):
    """The consumer does not read the queue, or gave it up or lost it during the call; ``consumer.assignment`` has its queues."""


class Attempt(NamedTuple):
    """One attempt of a send.

    Attributes:
        elapsed: Seconds that it took.
        error: None if it was unanswered when the call ended.
    """

    queue: MessageQueue
    address: str | None
    elapsed: float
    error: BaseException | None
    maybe_stored: bool


class SendError(RocketMQError):
    """No attempt of a send succeeded, of two or more, or of one whose error is not a RocketMQError.

    ``__cause__``: the newest error.

    Args:
        attempts: The first eight and the newest eight attempts, or all if there are at most 16.
        made: The number of all attempts, including attempts that ``attempts`` leaves out.
        maybe_stored: True if at least one attempt may have been stored.
    """

    def __init__(
        self,
        message: str,
        attempts: Sequence[Attempt],
        *,
        made: int | None = None,
        maybe_stored: bool | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, **details)
        self.attempts = tuple(attempts)
        self.made = len(self.attempts) if made is None else made
        stored = any(attempt.maybe_stored for attempt in self.attempts)
        self.maybe_stored = stored if maybe_stored is None else maybe_stored
