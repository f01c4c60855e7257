"""Decodes a broker's response to a send into a result or an error."""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import RemoteProtocolError
from rmq_protocol.message import MessageQueue
from rmq_protocol.send_codec import SendReply

from ...broker_answers import broker_error, is_unreplicated
from ...client import Replication
from ...errors import RocketMQError
from ...results import BatchSendResult, SendResult, SendStatus
from ...transport import Connection
from ..routing import Target
from .outgoing import Outgoing

SEND_OK: Final = SendStatus.SEND_OK
_STATUS: Final = {
    int(ResponseCode.SUCCESS): SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


def stored_message(reply: SendReply, outgoing: Outgoing, target: Target, attempts: int) -> SendResult | None:
    """Return the result of a single send. Return None if the reply does not say that the message is stored (see
    ``reply_error``).
    """
    return stored(reply, outgoing.unique_id, target, attempts)


def stored(reply: SendReply, unique_id: str, target: Target, attempts: int) -> SendResult | None:
    """Do the work of ``stored_message`` if there is no Outgoing, but only a unique id."""
    status = _STATUS.get(reply.code) if reply.code else SEND_OK
    fields = reply.extFields
    if status is None or fields is None:
        return None
    offset_msg_id, queue_id, offset = fields.msgId, fields.queueId, fields.queueOffset
    if offset_msg_id is None or queue_id is None or offset is None:
        return None
    queue = target.queue
    if queue_id != target.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        status,
        unique_id,
        offset_msg_id,
        queue,
        offset,
        fields.transactionId,
        fields.MSG_REGION,
        fields.TRACE_ON is not False,
        fields.recallHandle,
        attempts,
    )


def stored_batch(reply: SendReply, outgoing: Outgoing, target: Target, attempts: int) -> BatchSendResult | None:
    """Return the result of a batch.

    Return None if ``stored_message`` would return None, or if the number of offset ids does not match. A broker that stores the
    batch as one record returns one offset id for all messages.
    """
    ids = outgoing.batch_ids or ()
    single = stored(reply, outgoing.unique_id, target, attempts)
    if single is None:
        return None
    offset_ids = tuple(single.offset_msg_id.split(","))
    if len(offset_ids) != len(ids):
        if len(offset_ids) != 1:
            return None
        offset_ids *= len(ids)
    return BatchSendResult(
        single.status, single.queue, single.queue_offset, ids, offset_ids, attempts, single.region_id, single.trace_on
    )


def is_unclear(reply: SendReply, connection: Connection | None) -> bool:
    """Return whether the broker's configuration must be requested (``Replication.learn``) to determine if the message may be
    stored.

    Args:
        connection: The connection on which the reply arrived, or None.
    """
    return connection is not None and is_unreplicated(reply.code, reply.remark) and Replication.counts_first(connection) is None


def reply_error(reply: SendReply, target: Target, connection: Connection | None = None) -> RocketMQError:
    """Return the error for a reply that is not a success.

    The error has ``maybe_stored`` in three cases: the code says "stored" but fields are missing; the broker's replicas have not
    confirmed the message, and the broker is not known to count its replicas first; the reply is a refusal but contains the id of a
    stored message. The last case occurs if a broker has stored a reply message that it cannot push to the requesting client.

    Args:
        connection: The connection on which the reply arrived, or None.
    """
    if reply.code in _STATUS:
        error: RocketMQError = RemoteProtocolError(
            f"{target.address} answered a send with code {reply.code}, but without a usable msgId, queueId and queueOffset; "
            "the message may have been stored; check that a broker or proxy of RocketMQ runs there",
            broker=target.broker,
            address=target.address,
        )
        error.maybe_stored = True
        return error
    counted = connection is not None and Replication.counts_first(connection) is True
    error = broker_error(
        reply.code, reply.remark, request="send", broker=target.broker, address=target.address, counted=counted
    )
    unconfirmed = not counted and is_unreplicated(reply.code, reply.remark)
    if unconfirmed or (reply.extFields is not None and reply.extFields.msgId is not None):
        error.maybe_stored = True
    return error
