"""The errors of the client.

Attributes of the error classes decide about retries.

``retriable`` means that another attempt may succeed, on another broker if there is one. ``maybe_stored`` means that the request may
have reached the broker, so the message may be stored although the call failed. ``uses_retry`` means that the attempt counts towards
``retries``. After an error response of a broker, ``ProducerConfig.retry_codes`` decides whether to retry, unless the class has
``never_retried`` or ``always_retried``.
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
    "LiteQuotaError",
    "LiteSubscriptionLostError",
    "LiteSubscriptionQuotaError",
    "LiteTopicQuotaError",
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
    """A setting or an argument is invalid, or contradicts another one."""


class SubscriptionConflictError(ConfigError):
    """Members of one consumer group differ in subscriptions, message model or mode, so they may miss messages or get them twice."""


class InvalidGroupError(ConfigError, InvalidMessageError):
    """The name of a group is not a str, is blank or too long, or has a character that is not allowed (code -1, as in Java's
    ``Validators``).
    """

    code = -1


class SelectorError(RocketMQError):
    """A selector failed, cannot use the key, or did not return one of the queues that it was given; or the ``queue`` of a send
    belongs to another topic.
    """


class ForbiddenError(RocketMQError):
    """A ``check_forbidden`` hook refused an attempt, or raised another error (``__cause__``). The attempt was not sent."""


class ClientStateError(RocketMQError):
    """The call is not possible in the current state, or it was ended by a stop or a cancellation.

    The message names the state: for example, the client is not started or is already running, the group has members, or the
    delivery has ended.
    """


class ForkedError(RocketMQError):
    """The client was started before ``os.fork()``, so its sockets belong to the parent. Create a new client in the child."""


class WrongLoopError(RocketMQError):
    """The client, outbox or iterator belongs to a different event loop than this call."""


class BackpressureError(RocketMQError):
    """The timeout of the call passed before the message could be sent, so the message was not sent.

    The call had to wait because other calls had too many unfinished messages or bytes, earlier ordered sends were unfinished, or a
    broker did not keep up with one-way messages.
    """


class _LastingError(RocketMQError):
    def __init__(self, message: str = "", *, permanent: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.permanent = permanent


class NameServerError(_LastingError):
    """No name server is configured, or none sent a usable response in time (10004).

    If a call needs the responses of all name servers, at least one did not respond. ``permanent`` is True if later calls will fail,
    too, because all addresses belong to brokers.
    """

    code = 10004


class TopicNotFoundError(RocketMQError):
    """The topic has no route or no queue for the call (10005, or 17 from a broker), or no topic matches a pattern (10005)."""

    code = 10005


class BrokerNotFoundError(RocketMQError):
    """There is no broker for the request (10003). For example, no broker has the name, the address of the broker or of its master
    is not known, or the topic has no queue there that the call may use.
    """

    code = 10003
    retriable = True


class ConnectError(_LastingError):
    """No connection to ``address`` could be made, so nothing was sent (10001).

    ``__cause__`` is the error of the operating system, if there is one. ``permanent`` is True if every later attempt will fail,
    too, because the address is malformed or a setting forbids it.
    """

    code = 10001
    retriable = True

    @property
    def uses_retry(self) -> bool:
        return self.permanent


class _UnansweredError(RocketMQError):
    """There was no response.

    Args:
        maybe_stored: True if the request was written, so the broker may have handled it.
    """

    retriable = True

    def __init__(self, message: str = "", *, maybe_stored: bool = False, **details: Any) -> None:
        super().__init__(message, **details)
        self.maybe_stored = maybe_stored

    @property
    def uses_retry(self) -> bool:
        return self.maybe_stored


class ConnectionLostError(_UnansweredError):
    """The connection closed before the response arrived. ``maybe_stored`` is True if the request was written."""


class RequestTimeoutError(_UnansweredError, TimeoutError):
    """The timeout passed before the response arrived or the work was done (10002).

    ``maybe_stored`` is True if the broker may have handled the request.
    """

    code = 10002


class BrokerError(RocketMQError):
    """A server responded with an error.

    Args:
        code: The ResponseCode of the response.
        remark: The remark of the response.
        request: The name of the request.
    """

    response_code: ClassVar[int | None] = None
    never_retried: ClassVar[bool] = False
    always_retried: ClassVar[bool] = False
    """Whether a send is retried regardless of ``retry_codes``, provided that the call may use another queue."""
    backs_off: ClassVar[bool] = False
    """Whether there is a short pause before a retry, because the broker reported that it is too busy."""

    def __init__(self, remark: str = "", *, code: int | None = None, request: str = "", **details: Any) -> None:
        number = code if code is not None else self.response_code
        name = ResponseCode(number).name if number in _KNOWN_CODES else "unknown code"
        subject = f"{request}: " if request else ""
        super().__init__(f"{subject}{number} {name}: {printable(remark, _LONGEST_REMARK)}", code=number, **details)
        self.remark = remark
        self.request = request


class BrokerSystemError(BrokerError):
    """The server failed (1). The remark has the reason."""

    response_code = ResponseCode.SYSTEM_ERROR
    retriable = True


class NotEnoughReplicasError(BrokerSystemError):
    """The broker has fewer in-sync replicas than ``minInSyncReplicas`` (1), and has not stored the message.

    The send is retried within its ``timeout``. Brokers that replicate by DLedger send the same response after they have stored the
    message; the error is then a BrokerSystemError with ``maybe_stored``.
    """

    always_retried = True

    @property
    def uses_retry(self) -> bool:
        return False


class SystemBusyError(BrokerError):
    """The broker was too busy for the request (2), for example because of its send queue or page cache. It stored no message."""

    response_code = ResponseCode.SYSTEM_BUSY
    retriable = True
    backs_off = True


class RequestCodeNotSupportedError(BrokerError):
    """The server does not know the request, or does not accept it from clients (3)."""

    response_code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED


class MessageIllegalError(BrokerError):
    """The broker refused a message (13), for example because it is too large, or an acknowledgement with an invalid queue or
    offset.
    """

    response_code = ResponseCode.MESSAGE_ILLEGAL


class ServiceNotAvailableError(BrokerError):
    """The broker cannot store messages now (14), for example because it is a replica, is shutting down, or has a full disk."""

    response_code = ResponseCode.SERVICE_NOT_AVAILABLE
    retriable = True


class VersionNotSupportedError(BrokerError):
    """The broker requires a client of another version (15)."""

    response_code = ResponseCode.VERSION_NOT_SUPPORTED


class NoPermissionError(BrokerError):
    """The broker does not permit the request (16), for example because the broker or the topic is not writable or readable."""

    response_code = ResponseCode.NO_PERMISSION
    retriable = True


class AuthenticationError(NoPermissionError):
    """The server does not accept the credentials (16, or 1 from 4.x brokers). The error is recognized by the remark."""

    retriable = False
    never_retried = True


class PermissionDeniedError(NoPermissionError):
    """The user lacks the permission for the request (16, or 1 from 4.x brokers). The error is recognized by the remark."""

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
    """The topic has no queue with that id on the broker (29, or 1 from 4.x brokers). No message was stored.

    Attributes:
        queue_id: The requested id; None if the remark, by which the error is recognized, does not report it.
        queues: The number of read queues or of write queues, whichever is larger; None if the remark does not report it.
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
            there = f"it has {self.queues} there, numbered from 0; fetch_publish_queues() returns the queues for sends"
            self.args = (f"{missing}: {there} ({self.args[0]})",)

    @property
    def uses_retry(self) -> bool:
        return False


class NoBuyerIdError(BrokerError):
    """The broker is in unit mode, and the request has no buyer id (204)."""

    response_code = ResponseCode.NO_BUYER_ID
    retriable = True


class NotInCurrentUnitError(BrokerError):
    """The broker is in unit mode, and the message belongs to another unit (205)."""

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
    """The broker refuses the operation (604), for example because a recall or the end of a transaction arrives too late."""

    response_code = ResponseCode.ILLEGAL_OPERATION


class GoAwayError(BrokerError):
    """The server is shutting down gracefully, and its clients should use another server (1500)."""

    response_code = ResponseCode.GO_AWAY
    retriable = True

    @property
    def uses_retry(self) -> bool:
        return False


class OffsetRangeError(BrokerError):
    """The offset is outside the queue (21), or the messages there were deleted or replaced before they were read.

    Args:
        min_offset: The first offset of the queue; 0 if it is not known. After a broker has deleted messages, it updates this offset
            some seconds later.
        max_offset: The offset after the last message of the queue; 0 if it is not known.
        lost: The offsets that were deleted before they were read, as far as they are known.
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
    """The half message is stored, but COMMIT or ROLLBACK was refused or not confirmed.

    If the request did not take effect, the broker will check the transaction. ``code`` is the code of the broker's response; None
    if there was no response.

    Args:
        result: The TransactionSendResult, with ``local_status``.
        maybe_ended: True if the broker may have ended the transaction nevertheless.
        maybe_stored: True if the outcome was COMMIT. Consumers may see the message now, or after ``check`` has returned COMMIT.
        remark: The remark of the broker's response; "" if there was no response.
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
    """A handler ran for longer than the ``timeout`` of its subscription, or messages from an iterator or ``receive()`` were not
    settled within that time. The attempt to handle the messages counts as failed.
    """


class QueueLostError(RocketMQError):
    """The consumer does not read the queue, or it released or lost the queue during the call. ``consumer.assignment`` has the
    queues that the consumer reads.
    """


class LiteQuotaError(BrokerError):
    """A broker has the maximum number of lite topics or of subscriptions to them."""


class LiteTopicQuotaError(LiteQuotaError):
    """A broker has the maximum number of lite topics (2017, ``maxLmqConsumeQueueNum``), so a message cannot create another one."""

    response_code = ResponseCode.LMQ_QUOTA_EXCEEDED


class LiteSubscriptionQuotaError(LiteQuotaError):
    """A broker has the maximum number of subscriptions to lite topics (2018, ``maxLiteSubscriptionCount``)."""

    response_code = ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED


class LiteSubscriptionLostError(RocketMQError):
    """Another client of an exclusive group has subscribed to the lite topic, which ends the subscription of this client."""


class Attempt(NamedTuple):
    """One attempt of a send.

    Attributes:
        queue: The queue to which the attempt was made.
        address: The broker's address, "host:port".
        elapsed: Seconds that the attempt took.
        error: The error of the attempt; None if there was no response yet when the call ended.
        maybe_stored: True if this attempt may have stored the message.
    """

    queue: MessageQueue
    address: str | None
    elapsed: float
    error: BaseException | None
    maybe_stored: bool


class SendError(RocketMQError):
    """No attempt of a send succeeded. It is raised after two or more attempts, or after one attempt whose error is not a
    RocketMQError.

    ``__cause__`` is the last error.

    Args:
        attempts: The first eight and the last eight attempts, or all attempts if there are at most 16.
        made: The number of all attempts, including attempts that are not in ``attempts``.
        maybe_stored: True if at least one attempt may have stored the message.
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
