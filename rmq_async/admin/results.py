"""Results of an admin's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rmq_protocol.heartbeat import SubscriptionData
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig

__all__ = [
    "BrokerOverview",
    "ClientConnection",
    "ConsumerConnections",
    "GroupLag",
    "GroupMember",
    "GroupOverview",
    "OffsetChange",
    "Overview",
    "QueueLag",
    "QueueStats",
    "SyncedTopic",
    "TopicStats",
]


class QueueStats(msgspec.Struct, frozen=True):
    """The offsets of one queue.

    ``min_offset``: of the first message there is; ``max_offset``: after the last one. ``last_store_time_ms``: when the last one
    was stored, 0 for a queue that never had one.
    """

    min_offset: int
    max_offset: int
    last_store_time_ms: int


class TopicStats(msgspec.Struct, frozen=True):
    """The queues of a topic and its rate.

    ``queues``: by broker name, then id. ``put_tps``: messages a second over the last minute, of all brokers.
    """

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


class GroupMember(msgspec.Struct, frozen=True):
    """A client that consumes as a group. ``address``: "ip:port" of one of its connections; ``brokers``: names of those it is
    connected to. ``version``: as in ClientConnection."""

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


class QueueLag(msgspec.Struct, frozen=True):
    """Progress of a group in one queue. ``committed``: the group's offset, 0 without one; ``end``: offset after the last message.
    ``inflight``: messages that were pulled and are not committed, 0 where the broker does not count them (before 5.0).
    ``last_store_time_ms``: when the last committed message was stored, epoch ms; 0 for none."""

    committed: int
    end: int
    inflight: int
    last_store_time_ms: int

    @property
    def messages(self) -> int:
        """Messages that are not committed; those that a filter leaves out and deleted ones count too."""
        return max(self.end - self.committed, 0)


class GroupLag(msgspec.Struct, frozen=True):
    """Progress of a group. ``queues``: of its topics; ``retry_queues``: of its retry topic, whose messages failed before."""

    queues: Mapping[MessageQueue, QueueLag]
    retry_queues: Mapping[MessageQueue, QueueLag]

    @property
    def messages(self) -> int:
        """Messages of the topics that are not committed."""
        return sum(each.messages for each in self.queues.values())

    @property
    def retries(self) -> int:
        """Messages of the retry topic that are not committed; those whose delay has not passed are not in it yet."""
        return sum(each.messages for each in self.retry_queues.values())


class OffsetChange(msgspec.Struct, frozen=True):
    """A change of a group's offset in a queue. ``before``: None where the group had none. ``verified``: whether the broker
    showed ``after``, or what members have committed from there on, when it was asked afterwards. False in a dry run, and where
    members had gone back and passed the former offset again before it could be seen: their lag shows how far they are."""

    queue: MessageQueue
    before: int | None
    after: int
    verified: bool = False


class BrokerOverview(msgspec.Struct, frozen=True):
    """A broker that a name server knows. ``address``: of its master, "" where none is known; ``replicas``: the others.

    ``version``: such as "V5_5_0". ``disk_used``: of the commit log's disk, from 0 to 1; None where the broker does not say.
    ``problem``: why nothing is known of what it holds; None where it responds.
    """

    name: str
    cluster: str
    address: str
    replicas: int = 0
    version: str = ""
    disk_used: float | None = None
    problem: str | None = None


class GroupOverview(msgspec.Struct, frozen=True):
    """A consumer group. ``members``: client ids of those that are connected; None where a broker refused to say them, as a busy
    one does. ``oldest_store_time_ms``: when the oldest message that is not committed was stored, epoch ms; None without one, and
    where it could not be read. It is looked for in two queues at most, those that committed the oldest messages last.
    ``lag_unknown``: brokers that refused to say the group's offsets, which ``lag`` is without."""

    lag: GroupLag
    members: tuple[str, ...] | None
    oldest_store_time_ms: int | None = None
    lag_unknown: tuple[str, ...] = ()


class Overview(msgspec.Struct, frozen=True):
    """Brokers, topics and groups by name, as those brokers show them that respond. ``topics_unknown``: brokers that refused to say
    a topic's offsets, as busy ones do, by topic; its queues on them are not in ``topics``."""

    brokers: Mapping[str, BrokerOverview]
    topics: Mapping[str, Mapping[MessageQueue, QueueStats]]
    groups: Mapping[str, GroupOverview]
    topics_unknown: Mapping[str, tuple[str, ...]] = {}
