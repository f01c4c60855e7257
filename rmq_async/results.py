"""The results of calls. They are small frozen structs. One is made for each message, so derived values are computed on access."""

from __future__ import annotations

from enum import Enum

import msgspec

from rmq_protocol.errors import CorruptMessageError
from rmq_protocol.message import MessageExt, MessageQueue


class SendStatus(Enum):
    """The status of a message that the broker stored. Any status except SEND_OK means that flushing or replicating was not
    confirmed.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send of one message.

    Attributes:
        status: The status of the stored message.
        msg_id: The unique id (UNIQ_KEY), the same for every attempt of the call.
        offset_msg_id: The broker's id of the message, which contains the broker's address and the offset in the commit log.
        queue: The queue in which the message is stored.
        queue_offset: The offset in the queue.
        transaction_id: The transaction id in the response, or None.
        region_id: The region id in the response, or None.
        trace_on: False if the broker has disabled message traces.
        recall_handle: The argument with which ``recall`` cancels the delivery of a delayed message, or None.
        attempts: Number of attempts of the call.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None
    attempts: int = 1


class TransactionStatus(Enum):
    """The outcome of a local transaction. UNKNOWN means that the outcome is not known yet, and the broker will check the
    transaction later.
    """

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


class TransactionSendResult(SendResult, frozen=True, gc=True):
    """The result of a half message and its local transaction.

    Status, ids, queue and offset belong to the half message. After a commit, the message that consumers read has another offset.

    Attributes:
        local_status: The outcome of the local transaction. It is ROLLBACK if ``status`` is not SEND_OK, because ``execute`` is not
            called then.
        local_error: The error of ``execute``, or None. With an error, ``local_status`` is UNKNOWN.
    """

    local_status: TransactionStatus = TransactionStatus.UNKNOWN
    local_error: Exception | None = None


class BatchSendResult(msgspec.Struct, frozen=True):
    """The result of a send of one batch.

    Attributes:
        queue_offset: The offset of the first message. The other messages follow without a gap.
        msg_ids: The unique id of each message.
        offset_msg_ids: The offset id of each message. All ids are equal if the broker stored the batch as one record.
    """

    status: SendStatus
    queue: MessageQueue
    queue_offset: int
    msg_ids: tuple[str, ...]
    offset_msg_ids: tuple[str, ...]
    attempts: int = 1
    region_id: str | None = None
    trace_on: bool = True

    @property
    def results(self) -> tuple[SendResult, ...]:
        """One SendResult per message, in the order in which the messages were given."""
        return tuple(
            SendResult(
                self.status,
                msg_id,
                offset_msg_id,
                self.queue,
                self.queue_offset + index,
                region_id=self.region_id,
                trace_on=self.trace_on,
                attempts=self.attempts,
            )
            for index, (msg_id, offset_msg_id) in enumerate(zip(self.msg_ids, self.offset_msg_ids, strict=True))
        )


class PullStatus(Enum):
    """The outcome of one pull.

    Attributes:
        FOUND: There are messages.
        NO_NEW: There is no message at or after the offset yet.
        NO_MATCH: The broker has searched some offsets without finding a message that the filter accepts.
        OFFSET_ILLEGAL: The offset is outside the queue.
    """

    FOUND = "FOUND"
    NO_NEW = "NO_NEW"
    NO_MATCH = "NO_MATCH"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


class PullResult(msgspec.Struct, frozen=True):
    """The result of one pull.

    Attributes:
        status: The outcome of the pull.
        messages: The messages.
        next_offset: The offset for the next pull, with any status.
        min_offset: The first offset of the queue.
        max_offset: The offset after the last message of the queue.
        corrupt: The errors of records that cannot be decoded and are not in ``messages``.
        lost: Offsets from the requested offset to ``next_offset`` whose messages were deleted. If the settings of the topic cannot
            be read, all offsets without a message. It is empty with a filter, because the broker does not report the messages that
            it skipped, and for compacted and lite topics.
    """

    status: PullStatus
    messages: tuple[MessageExt, ...]
    next_offset: int
    min_offset: int
    max_offset: int
    corrupt: tuple[CorruptMessageError, ...] = ()
    lost: tuple[range, ...] = ()
