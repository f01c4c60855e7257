"""Offsets by queue: those of a topic, the committed ones of groups, and those that a reset sets.

Most of these are maps keyed by queues, which servers and the Java client write in a form of their own; see ``json_body``.
"""

from __future__ import annotations

import msgspec

from ..errors import RemoteProtocolError
from ..java_types import Double, Int, Long
from ..json_body import decode_body
from ..message import MessageQueue
from .tables import DataVersion

__all__ = [
    "ConsumeStats",
    "ConsumeStatsList",
    "ConsumerOffsetSerializeWrapper",
    "GetConsumerStatusBody",
    "MessageQueueForC",
    "OffsetWrapper",
    "QueryConsumeTimeSpanBody",
    "QueryCorrectionOffsetBody",
    "QueueTimeSpan",
    "ResetOffsetBody",
    "ResetOffsetBodyForC",
    "TopicOffset",
    "TopicStatsTable",
    "decode_reset_offsets",
]


class TopicOffset(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a queue.

    ``max_offset``: offset that the next message will get. ``last_update_timestamp``: store time of the last message, epoch ms;
    0 without one, -1 if it is not stored any more.
    """

    min_offset: Long = 0
    max_offset: Long = 0
    last_update_timestamp: Long = 0


class TopicStatsTable(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_TOPIC_STATS_INFO. ``topic_put_tps``: messages stored per second in the last minute."""

    offset_table: dict[MessageQueue, TopicOffset] = {}
    topic_put_tps: Double = 0.0


class OffsetWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """The offsets of a group in a queue.

    ``broker_offset``: offset that the next stored message will get. ``consumer_offset``: the committed offset, 0 without one
    (-1 in static topics). ``pull_offset``: offset of the group's next pull, at least ``consumer_offset``;
    GET_BROKER_CONSUME_STATS leaves it 0. ``last_timestamp``: store time of the message before ``consumer_offset``, epoch ms; 0
    without one.
    """

    broker_offset: Long = 0
    consumer_offset: Long = 0
    pull_offset: Long = 0
    last_timestamp: Long = 0


class ConsumeStats(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_CONSUME_STATS. ``consume_tps``: messages per second that the broker handed to the group in the last minute
    (``tpsGroupGetNums``)."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: Double = 0.0


class ConsumeStatsList(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_BROKER_CONSUME_STATS: one table for each group, with the group's name as the only key and a ConsumeStats
    for each of its topics as the value. ``total_diff``: messages not consumed yet. ``total_inflight_diff``: sum of
    ``pull_offset`` - ``consumer_offset``, at most 0 since brokers leave ``pull_offset`` 0
    (``AdminBrokerProcessor.fetchAllConsumeStatsInBroker``)."""

    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    broker_addr: str | None = None
    total_diff: Long = 0
    total_inflight_diff: Long = 0


class ResetOffsetBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of RESET_CONSUMER_CLIENT_OFFSET from a broker; response of INVOKE_BROKER_TO_RESET_OFFSET."""

    offset_table: dict[MessageQueue, Long] = {}


class MessageQueueForC(msgspec.Struct, frozen=True, rename="camel"):
    topic: str
    broker_name: str
    queue_id: Int
    offset: Long


class ResetOffsetBodyForC(msgspec.Struct, frozen=True, rename="camel"):
    """Body of RESET_CONSUMER_CLIENT_OFFSET if the administrator's request has the language CPP, such as that of
    ``mqadmin resetOffsetByTime -c cluster``."""

    offset_table: tuple[MessageQueueForC, ...] = ()


def decode_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Returns the offsets in the body of a RESET_CONSUMER_CLIENT_OFFSET, a ``ResetOffsetBody`` or a ``ResetOffsetBodyForC``; an
    empty dict for an empty body.

    Raises RemoteProtocolError for a body that is neither of them.
    """
    if not body:
        return {}
    try:
        return decode_body(ResetOffsetBody, body).offset_table
    except RemoteProtocolError:
        table = decode_body(ResetOffsetBodyForC, body).offset_table
        return {MessageQueue(each.topic, each.broker_name, each.queue_id): each.offset for each in table}


class GetConsumerStatusBody(msgspec.Struct, frozen=True, rename="camel"):
    """Offsets that a client has in memory (response of GET_CONSUMER_STATUS_FROM_CLIENT), or, by client id, those of the clients
    of a group that the broker has asked (response of INVOKE_BROKER_TO_GET_CONSUMER_STATUS)."""

    message_queue_table: dict[MessageQueue, Long] = {}
    consumer_table: dict[str, dict[MessageQueue, Long]] = {}


class QueryCorrectionOffsetBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CORRECTION_OFFSET: queue id -> the smallest offset of all groups, without those behind the queue's
    oldest message; 2^63 - 1 where ``compareGroup`` is behind it (``AdminBrokerProcessor.queryCorrectionOffset``)."""

    correction_offsets: dict[Int, Long] = {}


class ConsumerOffsetSerializeWrapper(msgspec.Struct, frozen=True, rename="camel"):
    """Response of GET_ALL_CONSUMER_OFFSET: ``topic@group`` -> queue id -> offset."""

    offset_table: dict[str, dict[Int, Long]] = {}
    data_version: DataVersion | None = None


class QueueTimeSpan(msgspec.Struct, frozen=True, rename="camel"):
    """Store times of three messages of a queue, epoch ms: the oldest, the newest, and the last one that a group consumed (the
    oldest if it has consumed none); -1 for a message that is not stored. ``delay_time``: age in ms of the message that the
    group consumes next, 0 if it has consumed all, without meaning for a group without an offset
    (``AdminBrokerProcessor.queryConsumeTimeSpan``)."""

    message_queue: MessageQueue
    min_time_stamp: Long = 0
    max_time_stamp: Long = 0
    consume_time_stamp: Long = 0
    delay_time: Long = 0


class QueryConsumeTimeSpanBody(msgspec.Struct, frozen=True, rename="camel"):
    """Response of QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()
