"""Results of an admin's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rmq_protocol.heartbeat import SubscriptionData
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig

__all__ = ["ClientConnection", "ConsumerConnections", "QueueStats", "SyncedTopic", "TopicStats"]


class QueueStats(msgspec.Struct, frozen=True):
    """``min_offset``: of the first message there is; ``max_offset``: after the last one. ``last_store_time_ms``: when the last
    one was stored, 0 for a queue that never had one."""

    min_offset: int
    max_offset: int
    last_store_time_ms: int


class TopicStats(msgspec.Struct, frozen=True):
    """``queues``: by broker name, then id. ``put_tps``: messages a second over the last minute, of all brokers."""

    queues: Mapping[MessageQueue, QueueStats]
    put_tps: float = 0.0


class ClientConnection(msgspec.Struct, frozen=True):
    """One client as one broker sees it: ``address`` is where its connection comes from, "ip:port". ``version``: the number of
    RocketMQ's version that it says it speaks, such as 513 for 5.5.0."""

    broker: str
    client_id: str
    address: str
    language: str
    version: int


class ConsumerConnections(msgspec.Struct, frozen=True):
    """A consumer group: its ``connections``, and what the heartbeats of its members say.

    ``subscriptions``: by topic. ``consume_type``: CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push) or CONSUME_POP;
    ``message_model``: CLUSTERING or BROADCASTING; ``consume_from_where``: such as CONSUME_FROM_LAST_OFFSET.
    """

    connections: tuple[ClientConnection, ...]
    subscriptions: Mapping[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class SyncedTopic(msgspec.Struct, frozen=True):
    """One topic of ``Admin.sync_topics``: created, updated because its settings differed, or unchanged.

    ``config``: its settings on both brokers now.
    """

    topic: str
    action: Literal["create", "update", "same"]
    config: TopicConfig
