"""Headers about transactions: their end, and the broker's check of a half message whose outcome it does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, RpcRequestHeader

__all__ = [
    "CheckTransactionStateRequestHeader",
    "CheckTransactionStateResponseHeader",
    "EndTransactionRequestHeader",
    "EndTransactionResponseHeader",
    "ResumeCheckHalfMessageRequestHeader",
]

_OUTCOMES: Final = {"commitOrRollback": frozenset({0, 8, 12})}


class EndTransactionRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of END_TRANSACTION.

    ``commitOrRollback``: 8 commit, 12 rollback, 0 not known; ``from_ext`` raises RemoteProtocolError for other values.
    ``tranStateTableOffset``: queue offset of the half message. ``commitLogOffset``: the offset in its offset id. ``msgId``: its
    unique id. ``fromTransactionCheck``: True if the request answers a CHECK_TRANSACTION_STATE.
    """

    request_code: ClassVar[int | None] = RequestCode.END_TRANSACTION
    choices: ClassVar[Mapping[str, frozenset[int]]] = _OUTCOMES

    topic: str | None = None
    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: Int
    fromTransactionCheck: bool | None = False
    msgId: str
    transactionId: str | None = None


class EndTransactionResponseHeader(Header, kw_only=True):
    pass


class CheckTransactionStateRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CHECK_TRANSACTION_STATE, a one-way request of a broker. The body is the half message as stored, with the topic
    it was sent to.

    ``topic``: the broker's topic of half messages. ``msgId``: unique id. ``offsetMsgId``: offset id of the newest copy of the half
    message: brokers store it anew for each check.
    """

    request_code: ClassVar[int | None] = RequestCode.CHECK_TRANSACTION_STATE

    topic: str | None = None
    tranStateTableOffset: Long
    commitLogOffset: Long
    msgId: str | None = None
    transactionId: str | None = None
    offsetMsgId: str | None = None


class CheckTransactionStateResponseHeader(Header, kw_only=True):
    """Header of a response to CHECK_TRANSACTION_STATE (Java class of the same name).

    Brokers of 5.5.0 send the check one-way (``Broker2Client.checkProducerTransactionState``) and get END_TRANSACTION instead.
    ``commitOrRollback``: as in ``EndTransactionRequestHeader``; ``from_ext`` raises RemoteProtocolError for other values.
    """

    choices: ClassVar[Mapping[str, frozenset[int]]] = _OUTCOMES

    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: Int


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """Header of RESUME_CHECK_HALF_MESSAGE, which makes the broker store a half message anew and check it from the first attempt
    on, such as one that it no longer checks (``AdminBrokerProcessor.resumeCheckHalfMessage``). ``msgId``: offset id of the
    stored copy."""

    request_code: ClassVar[int | None] = RequestCode.RESUME_CHECK_HALF_MESSAGE

    topic: str | None = None
    msgId: str | None = None
