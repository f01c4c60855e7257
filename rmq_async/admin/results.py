"""Results of an admin's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rmq_protocol.heartbeat import SubscriptionData
from rmq_protocol.message import MessageQueue
from rmq_protocol.topics import TopicConfig


class QueueStats(msgspec.Struct, frozen=True):
    """The offsets of one queue.

    Attributes:
        min_offset: Offset of the first message.
        max_offset: Offset after the last one.
        last_store_time_ms: Store time of the last message, epoch ms; 0 or -1 if the queue has none or its broker cannot read
            it.
    """

    min_offset: int
    max_offset: int
    last_store_time_ms: int


class TopicStats(msgspec.Struct, frozen=True):
    """The queues of a topic and its rate.

    Attributes:
        queues: Sorted by broker name, then queue id.
        put_tps: Messages stored a second over the last minute, the sum over the brokers that report it (5.5.0 does, 4.9.7 does
            not).
    """

    queues: Mapping[MessageQueue, QueueStats]
    put_tps: float = 0.0


class ClientConnection(msgspec.Struct, frozen=True):
    """One client as one broker sees it.

    Attributes:
        address: The remote address of its connection, "ip:port".
        version: The number of the RocketMQ version that it reports, such as 513 for 5.5.0.
    """

    broker: str
    client_id: str
    address: str
    language: str
    version: int


class ConsumerConnections(msgspec.Struct, frozen=True):
    """A consumer group: its ``connections``, and the contents of its members' heartbeats.

    Attributes:
        subscriptions: Subscriptions by topic.
        consume_type: CONSUME_ACTIVELY (pull), CONSUME_PASSIVELY (push) or CONSUME_POP.
        message_model: CLUSTERING or BROADCASTING.
        consume_from_where: Such as CONSUME_FROM_LAST_OFFSET.
    """

    connections: tuple[ClientConnection, ...]
    subscriptions: Mapping[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class SyncedTopic(msgspec.Struct, frozen=True):
    """One topic of ``Admin.sync_topics``.

    Attributes:
        action: "create", "update" if its settings differed, or "same"; nothing is done in a dry run.
        config: Its settings on ``from_broker``, which ``to_broker`` has too after a call that is not a dry run.
    """

    topic: str
    action: Literal["create", "update", "same"]
    config: TopicConfig


class GroupMember(msgspec.Struct, frozen=True):
    """A client that consumes as a group.

    Attributes:
        address: "ip:port" of one of its connections.
        brokers: Names of the brokers that it is connected to.
        version: Number of the client's version, as in ClientConnection.
    """

    client_id: str
    address: str
    language: str
    version: int
    brokers: tuple[str, ...]


class QueueLag(msgspec.Struct, frozen=True):
    """The progress of a group in one queue.

    Attributes:
        committed: The group's offset, 0 if there is none.
        end: Offset after the last message.
        inflight: Messages that were pulled and are not committed, 0 if the broker does not count them (before 5.0).
        last_store_time_ms: Store time of the last committed message, epoch ms; 0 if there is none or its broker cannot read it.
    """

    committed: int
    end: int
    inflight: int
    last_store_time_ms: int

    @property
    def messages(self) -> int:
        """Number of messages that are not committed; filtered and deleted ones count too."""
        return max(self.end - self.committed, 0)


class GroupLag(msgspec.Struct, frozen=True):
    """The progress of a group.

    Attributes:
        queues: The queues of its topics.
        retry_queues: Queues of its retry topics, which hold messages that failed before.
    """

    queues: Mapping[MessageQueue, QueueLag]
    retry_queues: Mapping[MessageQueue, QueueLag]

    @property
    def messages(self) -> int:
        """Number of messages of the topics that are not committed."""
        return sum(each.messages for each in self.queues.values())

    @property
    def retries(self) -> int:
        """Number of messages of the retry topics that are not committed; messages whose delay has not passed do not count
        yet.
        """
        return sum(each.messages for each in self.retry_queues.values())


class OffsetChange(msgspec.Struct, frozen=True):
    """A change of a group's offset in a queue.

    Attributes:
        before: The former offset; None if the group had none.
        verified: Whether the broker, asked afterwards, showed ``after`` or a later commit of a member. False in a dry run, and
            if members went back and passed the former offset again before the admin read it; ``Admin.group_lag`` then shows
            their progress.
    """

    queue: MessageQueue
    before: int | None
    after: int
    verified: bool = False


class BrokerOverview(msgspec.Struct, frozen=True):
    """A broker that a name server knows.

    Attributes:
        address: "host:port" of its master, "" if none is known.
        replicas: Number of its replicas.
        version: Such as "V5_5_0".
        disk_used: Used share of the commit log's disk, from 0 to 1; None if the broker does not report it.
        problem: The reason why its topics and groups are not known; None if it responds.
    """

    name: str
    cluster: str
    address: str
    replicas: int = 0
    version: str = ""
    disk_used: float | None = None
    problem: str | None = None


class GroupOverview(msgspec.Struct, frozen=True):
    """A consumer group.

    Attributes:
        members: Client ids of the connected members; None if a broker refused the request, as a busy one does.
        oldest_store_time_ms: Store time of the oldest message that is not committed, epoch ms, retries left out; None if there
            is none or it could not be read. It is read from two queues at most, whose last committed messages are the
            oldest.
        oldest_age: Seconds since then by the clock of its broker, or by this machine's where the broker does not say its time.
        lag_unknown: Brokers that refused the group's offsets; ``lag`` does not include them.
    """

    lag: GroupLag
    members: tuple[str, ...] | None
    oldest_store_time_ms: int | None = None
    lag_unknown: tuple[str, ...] = ()
    oldest_age: float | None = None


class Overview(msgspec.Struct, frozen=True):
    """Brokers that a name server knows, and the topics and groups of the brokers that respond, by name.

    Attributes:
        topics_unknown: Topic -> brokers that refused its offsets, as busy brokers do; its queues on them are not in
            ``topics``.
    """

    brokers: Mapping[str, BrokerOverview]
    topics: Mapping[str, Mapping[MessageQueue, QueueStats]]
    groups: Mapping[str, GroupOverview]
    topics_unknown: Mapping[str, tuple[str, ...]] = {}
