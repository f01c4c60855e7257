"""Headers about single messages and the entries of a queue."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int, Long
from .base import Header, TopicRequestHeader

__all__ = [
    "QueryConsumeQueueRequestHeader",
    "QueryMessageRequestHeader",
    "QueryMessageResponseHeader",
    "StatisticsMessagesRequestHeader",
    "ViewMessageRequestHeader",
    "ViewMessageResponseHeader",
]


class ViewMessageRequestHeader(Header, kw_only=True):
    """Header of VIEW_MESSAGE_BY_ID. ``offset``: the commit log offset in the offset message id."""

    request_code: ClassVar[int | None] = RequestCode.VIEW_MESSAGE_BY_ID

    topic: str | None = None
    offset: Long


class ViewMessageResponseHeader(Header, kw_only=True):
    pass


class QueryMessageRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_MESSAGE.

    ``key``: a key or, if the extField ``_UNIQUE_KEY_QUERY`` is "true", a unique id. ``beginTimestamp``, ``endTimestamp``: range
    of store times, epoch ms. ``indexType``, ``lastKey``: only brokers with an index in RocksDB use them.
    """

    request_code: ClassVar[int | None] = RequestCode.QUERY_MESSAGE

    topic: str
    key: str
    maxNum: Int
    beginTimestamp: Long
    endTimestamp: Long
    indexType: str | None = None
    lastKey: str | None = None


class QueryMessageResponseHeader(Header, kw_only=True):
    """Header of the response to QUERY_MESSAGE.

    ``indexLastUpdateTimestamp``, ``indexLastUpdatePhyoffset``: store time (epoch ms) and commit log offset of the last indexed
    message.
    """

    indexLastUpdateTimestamp: Long
    indexLastUpdatePhyoffset: Long


class QueryConsumeQueueRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of QUERY_CONSUME_QUEUE.

    ``index``: queue offset of the first entry; ``count``: maximum number of entries. ``consumerGroup``: the connected group whose
    filter the broker evaluates for entries with an extension, None for no filter (``AdminBrokerProcessor.queryConsumeQueue``).
    """

    request_code: ClassVar[int | None] = RequestCode.QUERY_CONSUME_QUEUE

    topic: str | None = None
    queueId: Int = 0
    index: Long = 0
    count: Int = 0
    consumerGroup: str | None = None


class StatisticsMessagesRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of a request for the number of messages of a queue stored from ``fromTime`` to ``toTime`` (epoch ms). It has no
    request code in 5.5.0."""

    consumerGroup: str
    topic: str
    queueId: Int = 0
    fromTime: Long = 0
    toTime: Long = 0
