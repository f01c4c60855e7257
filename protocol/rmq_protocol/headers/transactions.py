"""Headers about transactions: the end of a half message, and the broker's check of its outcome."""

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

    ``commitOrRollback``: 8 commit, 12 rollback, 0 not known; decoding raises for other values. ``tranStateTableOffset``: queue
    offset of the half message. ``commitLogOffset``: the offset that its offset id names. ``msgId``: its unique id.
    ``fromTransactionCheck``: True if the request answers a CHECK_TRANSACTION_STATE.
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
    """Header of CHECK_TRANSACTION_STATE, from a broker, one-way; the body is the half message as stored, with its real topic.

    ``topic``: the topic of half messages. ``msgId``: unique id. ``offsetMsgId``: offset id of the half message now.
    """

    request_code: ClassVar[int | None] = RequestCode.CHECK_TRANSACTION_STATE

    topic: str | None = None
    tranStateTableOffset: Long
    commitLogOffset: Long
    msgId: str | None = None
    transactionId: str | None = None
    offsetMsgId: str | None = None


class CheckTransactionStateResponseHeader(Header, kw_only=True):
    """Header of the response of old clients to CHECK_TRANSACTION_STATE; current clients answer with END_TRANSACTION."""

    choices: ClassVar[Mapping[str, frozenset[int]]] = _OUTCOMES

    producerGroup: str
    tranStateTableOffset: Long
    commitLogOffset: Long
    commitOrRollback: Int


class ResumeCheckHalfMessageRequestHeader(Header, kw_only=True):
    """Header of a request to check a half message again after the broker has given it up."""

    request_code: ClassVar[int | None] = RequestCode.RESUME_CHECK_HALF_MESSAGE

    topic: str | None = None
    msgId: str | None = None
