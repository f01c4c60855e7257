"""The END_TRANSACTION request, and those fields of the response to a half message that it needs."""

from __future__ import annotations

from typing import Final

import msgspec

from rmq_protocol.command import RemotingCommand
from rmq_protocol.constants import SysFlag
from rmq_protocol.errors import ProtocolError
from rmq_protocol.headers import EndTransactionRequestHeader, request_of
from rmq_protocol.ids import unpack_offset_id
from rmq_protocol.message import Message, MessageExt
from rmq_protocol.send_codec import SendReply

from ..._text import printable
from ...results import SendResult, TransactionStatus
from ..encoding import Outgoing, stored
from ..routing import Target
from ..watching import Tracer

_WIRE: Final = {
    TransactionStatus.COMMIT: int(SysFlag.TRANSACTION_COMMIT),
    TransactionStatus.ROLLBACK: int(SysFlag.TRANSACTION_ROLLBACK),
    TransactionStatus.UNKNOWN: 0,
}
_TRACED: Final = {
    TransactionStatus.COMMIT: "COMMIT_MESSAGE",
    TransactionStatus.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionStatus.UNKNOWN: "UNKNOW",
}
_LARGEST: Final = (1 << 63) - 1
_LONGEST_REMARK: Final = 1000


class Half(SendResult, frozen=True, gc=False):
    """A stored half message.

    Attributes:
        address: The address of the message's broker.
        log_offset: The message's offset in the commit log of that broker.
    """

    address: str = ""
    log_offset: int = 0


def stored_half(reply: SendReply, outgoing: Outgoing, target: Target, attempts: int) -> Half | None:
    """Return the result of a half message, as ``stored_message`` does. Also return None if an offset that END_TRANSACTION needs is
    invalid.
    """
    result = stored(reply, outgoing.unique_id, target, attempts)
    if result is None:
        return None
    try:
        log_offset = unpack_offset_id(result.offset_msg_id).offset
    except ProtocolError:
        return None
    if not 0 <= result.queue_offset <= _LARGEST or log_offset < 0:
        return None
    return Half(**msgspec.structs.asdict(result), address=target.address, log_offset=log_offset)


class End(msgspec.Struct):
    """The identity of a half message at its broker.

    Attributes:
        topic: Name of the topic, with its namespace.
        group: Name of the group, with its namespace.
        queue_offset: Queue offset of the half message. It changes with each check, because the broker stores the message again.
        log_offset: Commit log offset of the half message, which also changes with each check.
        from_check: Whether the offsets come from a check.
    """

    topic: str
    group: str
    broker: str | None
    msg_id: str
    transaction_id: str | None
    queue_offset: int
    log_offset: int
    from_check: bool = False


def end_command(end: End, status: TransactionStatus, remark: str | None = None) -> RemotingCommand:
    """Return the END_TRANSACTION request.

    Args:
        remark: The reason for the status, for the broker's log.
    """
    header = EndTransactionRequestHeader(
        topic=end.topic,
        producerGroup=end.group,
        tranStateTableOffset=end.queue_offset,
        commitLogOffset=end.log_offset,
        commitOrRollback=_WIRE[status],
        fromTransactionCheck=end.from_check,
        msgId=end.msg_id,
        transactionId=end.transaction_id,
        bname=end.broker,
    )
    shortened = printable(remark, _LONGEST_REMARK) if remark is not None else None
    return request_of(header, remark=shortened)


def trace_end(
    tracer: Tracer | None,
    message: Message | MessageExt,
    end: End,
    status: TransactionStatus,
    address: str,
    region: str | None = None,
) -> None:
    """If tracing is on, trace that the end of a transaction is sent to the broker at ``address``."""
    if tracer is not None:
        tracer.end_transaction(
            message,
            msg_id=end.msg_id,
            address=address,
            transaction_id=end.transaction_id,
            state=_TRACED[status],
            from_check=end.from_check,
            region=region,
        )
