"""Headers about subscription groups on a broker, and about their progress."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int
from .base import Header, RpcRequestHeader, TopicRequestHeader

__all__ = [
    "DeleteSubscriptionGroupRequestHeader",
    "GetAllSubscriptionGroupRequestHeader",
    "GetAllSubscriptionGroupResponseHeader",
    "GetConsumeStatsInBrokerHeader",
    "GetConsumeStatsRequestHeader",
    "GetSubscriptionGroupConfigRequestHeader",
    "QueryConsumeTimeSpanRequestHeader",
    "QuerySubscriptionByConsumerRequestHeader",
    "QueryTopicsByConsumerRequestHeader",
    "UpdateGroupForbiddenRequestHeader",
]


class GetSubscriptionGroupConfigRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG

    group: str


class DeleteSubscriptionGroupRequestHeader(RpcRequestHeader, kw_only=True):
    """Header of DELETE_SUBSCRIPTIONGROUP. ``cleanOffset``: True deletes the group's offsets too."""

    request_code: ClassVar[int | None] = RequestCode.DELETE_SUBSCRIPTIONGROUP

    groupName: str
    cleanOffset: bool = False


class GetAllSubscriptionGroupRequestHeader(Header, kw_only=True):
    """Header of GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Its fields select a part of the table of groups as those of
    ``GetAllTopicConfigRequestHeader`` select topics."""

    request_code: ClassVar[int | None] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    groupSeq: Int
    dataVersion: str | None = None
    maxGroupNum: Int | None = None


class GetAllSubscriptionGroupResponseHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG

    totalGroupNum: Int


class UpdateGroupForbiddenRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of UPDATE_AND_GET_GROUP_FORBIDDEN. ``readable``: False forbids the group to read the topic, True allows it, None
    changes nothing; the response has the present state."""

    request_code: ClassVar[int | None] = RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN

    group: str
    topic: str
    readable: bool | None = None


class GetConsumeStatsRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_CONSUME_STATS. ``topicList``: topics joined by ``;``, which are used instead of ``topic``. Without both the
    request is for all topics in which the group has offsets. Without ``topicList`` a broker leaves out the topics to which a
    connected group does not subscribe (``AdminBrokerProcessor.getConsumeStats``)."""

    request_code: ClassVar[int | None] = RequestCode.GET_CONSUME_STATS

    consumerGroup: str
    topic: str | None = None
    topicList: str | None = None


class GetConsumeStatsInBrokerHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_BROKER_CONSUME_STATS

    isOrder: bool = False


class QueryConsumeTimeSpanRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.QUERY_CONSUME_TIME_SPAN

    topic: str
    group: str


class QueryTopicsByConsumerRequestHeader(RpcRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.QUERY_TOPICS_BY_CONSUMER

    group: str


class QuerySubscriptionByConsumerRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER

    group: str
    topic: str | None = None
