"""Topics on a broker."""

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

    ``attributes``: ``+key=value,-key`` or nothing. ``topicFilterType``: SINGLE_TAG or MULTI_TAG. ``perm``: see ``Perm``.
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
    """An empty header: the body has the list."""

    request_code: ClassVar[int | None] = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST


class DeleteTopicRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.DELETE_TOPIC_IN_BROKER

    topic: str


class GetTopicConfigRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_TOPIC_CONFIG

    topic: str


class GetAllTopicConfigRequestHeader(Header, kw_only=True):
    """Header of GET_ALL_TOPIC_CONFIG.

    The answer comes in portions where the broker splits the table: from topic number ``topicSeq`` on, at most ``maxTopicNum``,
    while ``dataVersion`` (JSON) stays the same. Without header fields it comes all at once.
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
