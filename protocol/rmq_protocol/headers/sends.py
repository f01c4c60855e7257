"""Headers of sends (with long names for the codes 10 and 324, one letter per field for 310, 320 and 325), of recalls, and of
replies between clients."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, TopicRequestHeader

__all__ = [
    "RecallMessageRequestHeader",
    "RecallMessageResponseHeader",
    "ReplyMessageRequestHeader",
    "SendMessageRequestHeader",
    "SendMessageRequestHeaderV2",
    "SendMessageResponseHeader",
    "send_header_v1",
    "send_header_v2",
]


class SendMessageRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.SEND_MESSAGE

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: Int
    queueId: Int
    sysFlag: Int
    bornTimestamp: Long
    flag: Int
    properties: str | None = None
    reconsumeTimes: Int | None = None
    unitMode: bool | None = None
    batch: bool | None = None
    maxReconsumeTimes: Int | None = None


class SendMessageRequestHeaderV2(TopicRequestHeader, kw_only=True):
    """Header of a send with one-letter names. ``a`` to ``n`` are, in this order: producerGroup, topic, defaultTopic,
    defaultTopicQueueNums, queueId, sysFlag, bornTimestamp, flag, properties, reconsumeTimes, unitMode, maxReconsumeTimes,
    batch, bname (name of the broker)."""

    request_code: ClassVar[int | None] = RequestCode.SEND_MESSAGE_V2

    a: str
    b: str
    c: str
    d: Int
    e: Int
    f: Int
    g: Long
    h: Int
    i: str | None = None
    j: Int | None = None
    k: bool | None = None
    l: Int | None = None  # noqa: E741 - the field's name on the wire
    m: bool | None = None
    n: str | None = None


class SendMessageResponseHeader(Header, kw_only=True):
    """Header of the response to a send.

    ``msgId``: offset message id; for a batch those of all messages, comma-joined. ``queueOffset``: offset of the message, or of
    the first one of a batch.
    """

    msgId: str
    queueId: Int
    queueOffset: Long
    transactionId: str | None = None
    batchUniqId: str | None = None
    recallHandle: str | None = None


class ReplyMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of PUSH_REPLY_MESSAGE_TO_CLIENT, with which the broker forwards a reply to the client that waits for it; the body is
    the reply's. ``bornHost``, ``storeHost``: ``ip:port`` of the client that replied and of the broker. ``bornTimestamp``: time of
    the reply; ``storeTimestamp``: time at which the broker received it; both in epoch ms."""

    request_code: ClassVar[int | None] = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT

    producerGroup: str
    topic: str
    defaultTopic: str
    defaultTopicQueueNums: Int
    queueId: Int
    sysFlag: Int
    bornTimestamp: Long
    flag: Int
    properties: str | None = None
    reconsumeTimes: Int | None = None
    unitMode: bool = False
    bornHost: str
    storeHost: str
    storeTimestamp: Long = 0


class RecallMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of RECALL_MESSAGE. ``recallHandle``: the text in the response to the send of the delayed message; the module
    ``recall`` reads it."""

    request_code: ClassVar[int | None] = RequestCode.RECALL_MESSAGE

    producerGroup: str | None = None
    topic: str
    recallHandle: str


class RecallMessageResponseHeader(Header, kw_only=True):
    """Header of the response to RECALL_MESSAGE. ``msgId``: unique id of the message that was recalled."""

    msgId: str


def send_header_v2(header: SendMessageRequestHeader) -> SendMessageRequestHeaderV2:
    """Returns the one-letter form of a header (``createSendMessageRequestHeaderV2``); ``ns``, ``nsd``, ``oway`` and ``lo`` are not
    copied. None becomes 0 for ``reconsumeTimes``, False for ``unitMode`` and ``batch``."""
    return SendMessageRequestHeaderV2(
        a=header.producerGroup,
        b=header.topic,
        c=header.defaultTopic,
        d=header.defaultTopicQueueNums,
        e=header.queueId,
        f=header.sysFlag,
        g=header.bornTimestamp,
        h=header.flag,
        i=header.properties,
        j=header.reconsumeTimes or 0,
        k=bool(header.unitMode),
        l=header.maxReconsumeTimes,
        m=bool(header.batch),
        n=header.bname,
    )


def send_header_v1(header: SendMessageRequestHeaderV2) -> SendMessageRequestHeader:
    """Returns the long form of a one-letter header (``createSendMessageRequestHeaderV1``); ``ns``, ``nsd``, ``oway`` and ``lo``
    are not copied."""
    return SendMessageRequestHeader(
        producerGroup=header.a,
        topic=header.b,
        defaultTopic=header.c,
        defaultTopicQueueNums=header.d,
        queueId=header.e,
        sysFlag=header.f,
        bornTimestamp=header.g,
        flag=header.h,
        properties=header.i,
        reconsumeTimes=header.j,
        unitMode=header.k,
        maxReconsumeTimes=header.l,
        batch=header.m,
        bname=header.n,
    )
