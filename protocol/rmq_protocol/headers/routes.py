"""Headers of requests to name servers: routes, topics of a cluster, permissions of a broker, and the name servers' table of keys
and values."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from ..java_types import Int
from .base import Header, TopicRequestHeader

__all__ = [
    "AddWritePermOfBrokerRequestHeader",
    "AddWritePermOfBrokerResponseHeader",
    "DeleteKVConfigRequestHeader",
    "DeleteTopicFromNamesrvRequestHeader",
    "GetKVConfigRequestHeader",
    "GetKVConfigResponseHeader",
    "GetKVListByNamespaceRequestHeader",
    "GetRouteInfoRequestHeader",
    "GetTopicsByClusterRequestHeader",
    "PutKVConfigRequestHeader",
    "RegisterOrderTopicRequestHeader",
    "RegisterTopicRequestHeader",
    "WipeWritePermOfBrokerRequestHeader",
    "WipeWritePermOfBrokerResponseHeader",
]


class GetRouteInfoRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of GET_ROUTEINFO_BY_TOPIC. ``acceptStandardJsonOnly``: True requests broker ids with quotes, which clients of 4.9.4
    and later get in any case."""

    request_code: ClassVar[int | None] = RequestCode.GET_ROUTEINFO_BY_TOPIC

    topic: str
    acceptStandardJsonOnly: bool | None = None


class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_TOPICS_BY_CLUSTER

    cluster: str


class DeleteTopicFromNamesrvRequestHeader(TopicRequestHeader, kw_only=True):
    """Header of DELETE_TOPIC_IN_NAMESRV. ``clusterName``: the cluster to whose brokers the routes are deleted; None or "" deletes
    all routes of the topic."""

    request_code: ClassVar[int | None] = RequestCode.DELETE_TOPIC_IN_NAMESRV

    topic: str
    clusterName: str | None = None


class RegisterTopicRequestHeader(TopicRequestHeader, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.REGISTER_TOPIC_IN_NAMESRV

    topic: str


class PutKVConfigRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.PUT_KV_CONFIG

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_KV_CONFIG

    namespace: str
    key: str


class GetKVConfigResponseHeader(Header, kw_only=True):
    """Header of the response to GET_KV_CONFIG. ``value``: None if there is no such key; the code is then
    QUERY_NOT_FOUND (22)."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.DELETE_KV_CONFIG

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.GET_KVLIST_BY_NAMESPACE

    namespace: str


class RegisterOrderTopicRequestHeader(Header, kw_only=True):
    """Header of a request that registers an ordered topic. ``orderTopicString``: ``broker-a:4;broker-b:4``. It has no request
    code in 5.5.0."""

    topic: str
    orderTopicString: str


class WipeWritePermOfBrokerRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.WIPE_WRITE_PERM_OF_BROKER

    brokerName: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """Header of the response to WIPE_WRITE_PERM_OF_BROKER. ``wipeTopicCount``: number of topics with a route to the broker,
    including those that had no write permission (``RouteInfoManager.operateWritePermOfBroker``)."""

    wipeTopicCount: Int


class AddWritePermOfBrokerRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.ADD_WRITE_PERM_OF_BROKER

    brokerName: str


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    addTopicCount: Int
