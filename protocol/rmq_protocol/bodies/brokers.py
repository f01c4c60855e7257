"""Bodies with the state and the counters that a broker reports."""

from __future__ import annotations

import msgspec

from ..heartbeat import SubscriptionData
from ..java_types import Double, Int, Long

__all__ = [
    "BrokerMemberGroup",
    "BrokerStatsData",
    "BrokerStatsItem",
    "ConsumeQueueData",
    "GetBrokerMemberGroupResponseBody",
    "QueryConsumeQueueResponseBody",
]


class BrokerMemberGroup(msgspec.Struct, frozen=True, rename="camel"):
    """The replicas of one broker name. ``broker_addrs``: broker id -> ``host:port``; id 0 is the master."""

    cluster: str | None = None
    broker_name: str | None = None
    broker_addrs: dict[Long, str] = {}


class GetBrokerMemberGroupResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    broker_member_group: BrokerMemberGroup | None = None


class BrokerStatsItem(msgspec.Struct, frozen=True):
    """A counter over one span of time. ``tps``: ``sum`` per second. ``avgpt``: ``sum`` per call, e.g. bytes
    per put."""

    sum: Long = 0
    tps: Double = 0.0
    avgpt: Double = 0.0


class BrokerStatsData(msgspec.Struct, frozen=True, rename="camel"):
    """Response of VIEW_BROKER_STATS_DATA: one counter over the last minute, hour and day."""

    stats_minute: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_day: BrokerStatsItem | None = None


class ConsumeQueueData(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of a consume queue. ``physic_offset``, ``physic_size``: position of its message in the commit log and its size,
    in bytes. ``tags_code``: ``java_hash`` of the tag, 0 without a tag; in the topic of delayed messages the due time, epoch ms.
    ``eval``: True if the entry has an extension and the filter of the request's group matches; brokers evaluate it for no other
    entries (``AdminBrokerProcessor.queryConsumeQueue``)."""

    physic_offset: Long = 0
    physic_size: Int = 0
    tags_code: Long = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CONSUME_QUEUE. ``max_queue_index``: offset that the next message will get. ``min_queue_index``: offset
    of the oldest message. ``filter_data``: JSON of the group's filter, or the text that the group is not online; None
    if the request names no group."""

    queue_data: tuple[ConsumeQueueData, ...] = ()
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    max_queue_index: Long = 0
    min_queue_index: Long = 0
