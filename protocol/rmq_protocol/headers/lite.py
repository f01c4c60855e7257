"""Headers about lite topics (5.5): many small topics under one parent topic."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, RpcRequestHeader

__all__ = [
    "GetLiteClientInfoRequestHeader",
    "GetLiteGroupInfoRequestHeader",
    "GetLiteTopicInfoRequestHeader",
    "GetParentTopicInfoRequestHeader",
    "LiteSubscriptionCtlRequestHeader",
    "NotifyUnsubscribeLiteRequestHeader",
    "PopLiteMessageRequestHeader",
    "PopLiteMessageResponseHeader",
    "TriggerLiteDispatchRequestHeader",
]


class PopLiteMessageRequestHeader(RpcRequestHeader, kw_only=True):
    clientId: str
    consumerGroup: str
    topic: str
    maxMsgNum: Int = 0
    invisibleTime: Long = 0
    pollTime: Long = 0
    bornTime: Long = 0
    attemptId: str | None = None


class PopLiteMessageResponseHeader(Header, kw_only=True):
    popTime: Long = 0
    invisibleTime: Long = 0
    reviveQid: Int = 0
    startOffsetInfo: str | None = None
    msgOffsetInfo: str | None = None
    orderCountInfo: str | None = None


class LiteSubscriptionCtlRequestHeader(RpcRequestHeader, kw_only=True):
    pass


class NotifyUnsubscribeLiteRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of NOTIFY_UNSUBSCRIBE_LITE, with which a broker says that it has removed the client's subscription of
    ``liteTopic``."""

    request_code: ClassVar[int | None] = RequestCode.NOTIFY_UNSUBSCRIBE_LITE

    liteTopic: str
    consumerGroup: str
    clientId: str


class GetParentTopicInfoRequestHeader(Header, kw_only=True):
    topic: str


class GetLiteTopicInfoRequestHeader(Header, kw_only=True):
    parentTopic: str | None = None
    liteTopic: str | None = None


class GetLiteClientInfoRequestHeader(Header, kw_only=True):
    parentTopic: str | None = None
    group: str | None = None
    clientId: str | None = None
    maxCount: Int = 1000


class GetLiteGroupInfoRequestHeader(Header, kw_only=True):
    group: str
    liteTopic: str | None = None
    topK: Int = 0


class TriggerLiteDispatchRequestHeader(Header, kw_only=True):
    group: str
    clientId: str | None = None
