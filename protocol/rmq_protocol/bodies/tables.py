"""Bodies that are plain lists and tables: names of topics and groups, keys and values, and the version of a table."""

from __future__ import annotations

import msgspec

from ..java_types import Long

__all__ = ["DataVersion", "GroupList", "KVTable", "TopicList"]


class DataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """The version of one of a broker's tables, such as that of its topics.

    ``counter`` grows with each change; ``timestamp``: time of the last change, epoch ms.
    """

    state_version: Long = 0
    timestamp: Long = 0
    counter: Long = 0


class TopicList(msgspec.Struct, frozen=True, rename="camel"):
    """Response to requests for lists of topics, such as GET_ALL_TOPIC_LIST_FROM_NAMESERVER, GET_TOPICS_BY_CLUSTER and
    QUERY_TOPICS_BY_CONSUMER."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


class GroupList(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_TOPIC_CONSUME_BY_WHO: names of groups."""

    group_list: tuple[str, ...] = ()


class KVTable(msgspec.Struct, frozen=True):
    """Response of GET_KVLIST_BY_NAMESPACE and GET_BROKER_RUNTIME_INFO: key -> value."""

    table: dict[str, str] = {}
