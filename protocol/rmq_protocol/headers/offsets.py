"""Headers about offsets: those of a queue, and the progress of a group."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import BoundaryType, Header, RpcRequestHeader, TopicRequestHeader

__all__ = [
    "CloneGroupOffsetRequestHeader",
    "GetEarliestMsgStoretimeRequestHeader",
    "GetEarliestMsgStoretimeResponseHeader",
    "GetMaxOffsetRequestHeader",
    "GetMaxOffsetResponseHeader",
    "GetMinOffsetRequestHeader",
    "GetMinOffsetResponseHeader",
    "InitConsumerOffsetRequestHeader",
    "QueryConsumerOffsetRequestHeader",
    "QueryConsumerOffsetResponseHeader",
    "QueryCorrectionOffsetHeader",
    "ResetOffsetRequestHeader",
    "SearchOffsetRequestHeader",
    "SearchOffsetResponseHeader",
    "UpdateConsumerOffsetRequestHeader",
    "UpdateConsumerOffsetResponseHeader",
]


class QueryConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CONSUMER_OFFSET.

    ``setZeroIfNotFound`` decides the answer for a group without an offset. True or None: 0 if the queue still begins there and
    its first message is in memory, else QUERY_NOT_FOUND. False: QUERY_NOT_FOUND (``ConsumerManageProcessor``).
    """

    request_code: ClassVar[int | None] = RequestCode.QUERY_CONSUMER_OFFSET

    consumerGroup: str
    topic: str
    queueId: Int
    setZeroIfNotFound: bool | None = None


class QueryConsumerOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class UpdateConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumerGroup: str
    topic: str
    queueId: Int
    commitOffset: Long


class UpdateConsumerOffsetResponseHeader(Header, kw_only=True):
    pass


class SearchOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of SEARCH_OFFSET_BY_TIMESTAMP. ``timestamp``: store time, epoch ms. ``boundaryType``: None counts as LOWER."""

    request_code: ClassVar[int | None] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    liteTopic: str | None = None
    queueId: Int
    timestamp: Long
    boundaryType: BoundaryType | None = None


class SearchOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class GetMaxOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_MAX_OFFSET. ``committed``: brokers ignore it (5.5.0)."""

    request_code: ClassVar[int | None] = RequestCode.GET_MAX_OFFSET

    topic: str
    queueId: Int
    committed: bool = True


class GetMaxOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class GetMinOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_MIN_OFFSET

    topic: str
    queueId: Int


class GetMinOffsetResponseHeader(Header, kw_only=True):
    offset: Long


class GetEarliestMsgStoretimeRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queueId: Int


class GetEarliestMsgStoretimeResponseHeader(Header, kw_only=True):
    """Header of the response to GET_EARLIEST_MSG_STORETIME.

    ``timestamp``: store time of the queue's oldest message, epoch ms; -1 for an empty queue.
    """

    timestamp: Long


class ResetOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a reset of offsets: 220 from broker to client, 222 from an administrator to a broker.

    ``timestamp``: store time to reset to, epoch ms, -1 for the end of the queue. ``queueId``: -1 for all queues. ``offset``:
    offset to reset the queue ``queueId`` to, instead of a time; None or -1 for the time. ``isForce``: True allows a reset
    forward too. Brokers that reset offsets themselves (``useServerSideResetOffset``, the default) ignore ``isForce``; others
    ignore ``queueId`` and ``offset``.
    """

    request_code: ClassVar[int | None] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    group: str
    topic: str
    queueId: Int = -1
    offset: Long | None = None
    timestamp: Long = 0
    isForce: bool = False


class CloneGroupOffsetRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of CLONE_GROUP_OFFSET, which copies the offsets of ``topic`` from ``srcGroup`` to ``destGroup``.

    ``offline``: False skips the topic if ``srcGroup`` has running consumers and none of them subscribes to it. Without ``topic``
    brokers copy nothing, and answer SUCCESS (5.5.0, ``AdminBrokerProcessor.cloneGroupOffset``).
    """

    request_code: ClassVar[int | None] = RequestCode.CLONE_GROUP_OFFSET

    srcGroup: str
    destGroup: str
    topic: str | None = None
    offline: bool = False


class QueryCorrectionOffsetHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CORRECTION_OFFSET. ``filterGroups``: groups to leave out, comma-joined; the broker DELETES the offsets of
    these groups, for all topics (``ConsumerOffsetManager.queryMinOffsetInAllGroup``)."""

    request_code: ClassVar[int | None] = RequestCode.QUERY_CORRECTION_OFFSET

    filterGroups: str | None = None
    compareGroup: str
    topic: str


class InitConsumerOffsetRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request that sets the first offsets of a group. ``initMode``: 0 for the oldest message, 1 for the end of the
    queue. It has no request code in 5.5.0."""

    topic: str | None = None
    initMode: Int = 0
