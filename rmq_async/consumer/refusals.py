"""What the failure of a request that gives a message back, or sends a copy of it, means for the message. It does no I/O."""

from __future__ import annotations

from enum import Enum
from typing import Final

from rmq_protocol.errors import RemoteProtocolError

from ..broker_answers import is_unreplicated
from ..errors import (
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    FlowControlError,
    MessageIllegalError,
    PermissionDeniedError,
    RequestTimeoutError,
    RocketMQError,
    SystemBusyError,
)

__all__ = ["Refusal", "refusal_of"]


class Refusal(Enum):
    """What a failed request to give a message back means.

    ``STORED``: the broker has stored the copy, but not flushed or replicated it in time, which a send counts as stored too.
    ``UNSURE``: it may have stored the copy: there was no answer in time, or none that says so. ``CUT``: the connection was lost,
    which says little about the broker; it may have stored the copy if the request was written. ``BUSY``: it takes messages back
    again soon. ``UNABLE``: it takes no message back for the time being; another broker may. ``FORBIDDEN``: this client may not give
    messages of the group back, whichever broker it asks. ``ILLEGAL``: this message cannot be stored again, as with properties
    that are too long now. ``GONE``: the broker does not store the message any more.
    """

    STORED = "stored"
    UNSURE = "unsure"
    CUT = "cut"
    BUSY = "busy"
    UNABLE = "unable"
    FORBIDDEN = "forbidden"
    ILLEGAL = "illegal"
    GONE = "gone"


_GONE: Final = "look message by offset failed"
"""Part of the remark to 36 for a message that is not stored (``AbstractSendMessageProcessor.consumerSendMsgBack``)."""
_STATUS: Final = {
    "FLUSH_DISK_TIMEOUT": Refusal.STORED,
    "FLUSH_SLAVE_TIMEOUT": Refusal.STORED,
    "SLAVE_NOT_AVAILABLE": Refusal.STORED,
    "IN_SYNC_REPLICAS_NOT_ENOUGH": Refusal.UNSURE,
    "putMessageResult is null": Refusal.UNSURE,
    "OS_PAGE_CACHE_BUSY": Refusal.BUSY,
    "MESSAGE_ILLEGAL": Refusal.ILLEGAL,
    "PROPERTIES_SIZE_EXCEEDED": Refusal.ILLEGAL,
}
"""Remarks to 36 with code 1: the name of the store's PutMessageStatus. A status that is not here means UNABLE, such as
SERVICE_NOT_AVAILABLE, a full disk's, and CREATE_MAPPED_FILE_FAILED."""


def refusal_of(error: RocketMQError) -> Refusal:
    """Returns the meaning of the error of a request."""
    if isinstance(error, AuthenticationError | PermissionDeniedError):
        return Refusal.FORBIDDEN
    if isinstance(error, SystemBusyError | FlowControlError):
        return Refusal.BUSY
    if isinstance(error, MessageIllegalError):
        return Refusal.ILLEGAL
    if isinstance(error, BrokerError):
        remark = error.remark or ""
        if error.code != 1:
            return Refusal.UNABLE
        if _GONE in remark:
            return Refusal.GONE
        if is_unreplicated(error.code, remark):
            return Refusal.UNSURE
        return _STATUS.get(remark, Refusal.UNABLE)
    if isinstance(error, ConnectionLostError):
        return Refusal.CUT
    if isinstance(error, RequestTimeoutError):
        return Refusal.UNSURE if error.maybe_stored else Refusal.UNABLE
    return Refusal.UNSURE if isinstance(error, RemoteProtocolError) else Refusal.UNABLE
