"""Headers about topics on a broker."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int
from .base import Header, RpcRequestHeader, TopicRequestHeader

__all__ = [
    "CreateTopicListRequestHeader",
    "CreateTopicRequestHeader",
    "DeleteTopicRequestHeader",
    "GetAllTopicConfigRequestHeader",
    "GetAllTopicConfigResponseHeader",
    "GetTopicConfigRequestHeader",
    "GetTopicStatsInfoRequestHeader",
    "QueryTopicConsumeByWhoRequestHeader",
]


class CreateTopicRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of UPDATE_AND_CREATE_TOPIC.

    ``attributes``: changes such as ``+key=value,-key``. ``topicFilterType``: SINGLE_TAG or MULTI_TAG. ``perm``: see ``Perm``.
    """

    request_code: ClassVar[int | None] = RequestCode.UPDATE_AND_CREATE_TOPIC

    topic: str
    defaultTopic: str
    readQueueNums: Int
    writeQueueNums: Int
    perm: Int
    topicFilterType: str
    topicSysFlag: Int | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = False


class CreateTopicListRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of UPDATE_AND_CREATE_TOPIC_LIST. It has no fields of its own: the body has the list."""

    request_code: ClassVar[int | None] = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class DeleteTopicRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class GetTopicConfigRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class GetAllTopicConfigRequestHeader(Header, kw_only=True):
    """Header of GET_ALL_TOPIC_CONFIG.

    A broker that splits its table (``enableSplitMetadata``, the default) answers with the topics from number ``topicSeq`` on, in
    the order of their names; with those from 0 on if ``dataVersion`` (JSON) is None or not that of the table. It returns at most
    ``maxTopicNum`` and at most its ``splitMetadataSize`` (2000 by default). Other brokers answer with the whole table, as all
    do for a request without these fields (``AdminBrokerProcessor.getAllTopicConfig``).
    """

    request_code: ClassVar[int | None] = RequestCode.GET_ALL_TOPIC_CONFIG

    topicSeq: Int
    dataVersion: str | None = None
    maxTopicNum: Int | None = None


class GetAllTopicConfigResponseHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_ALL_TOPIC_CONFIG

    totalTopicNum: Int | None = None


class GetTopicStatsInfoRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_TOPIC_STATS_INFO

    topic: str


class QueryTopicConsumeByWhoRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    topic: str
