"""The objects that the methods of ``Admin`` return."""

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
        max_offset: Offset after the last message.
        last_store_time_ms: Store time of the last message, epoch ms. It is 0 or -1 if the queue has no message or its broker
            cannot read the message.
    """

    min_offset: int
    max_offset: int
    last_store_time_ms: int


class TopicStats(msgspec.Struct, frozen=True):
    """The offsets of a topic's queues, and the rate at which brokers store its messages.

    Attributes:
        queues: Sorted by broker name, then queue id.
        put_tps: Messages stored per second over the last minute, summed over the brokers that report the rate (5.5.0 does,
            4.9.7 does not).
    """

    queues: Mapping[MessageQueue, QueueStats]
    put_tps: float = 0.0


class ClientConnection(msgspec.Struct, frozen=True):
    """A client, as one broker sees it.

    Attributes:
        address: The remote address of the client's connection, "ip:port".
        version: The number of the RocketMQ version that the client reports, such as 513 for 5.5.0.
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
        consume_from_where: The start position of a new group, such as CONSUME_FROM_LAST_OFFSET.
    """

    connections: tuple[ClientConnection, ...]
    subscriptions: Mapping[str, SubscriptionData] = {}
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""


class SyncedTopic(msgspec.Struct, frozen=True):
    """The result of ``Admin.sync_topics`` for one topic.

    Attributes:
        action: "create", "update" if the settings differed, or "same". A dry run does not carry out the action.
        config: The topic's settings on ``from_broker``. After a call that is not a dry run, ``to_broker`` has the same
            settings.
    """

    topic: str
    action: Literal["create", "update", "same"]
    config: TopicConfig


class GroupMember(msgspec.Struct, frozen=True):
    """A client that consumes as a group.

    Attributes:
        address: The address of one of its connections, "ip:port".
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
        committed: The group's offset, or 0 if the group has no offset.
        end: Offset after the last message.
        inflight: Number of messages that were pulled and are not committed, or 0 if the broker does not count them (before
            5.0).
        last_store_time_ms: Store time of the last committed message, epoch ms. It is 0 if there is no such message or its
            broker cannot read it.
    """

    committed: int
    end: int
    inflight: int
    last_store_time_ms: int

    @property
    def messages(self) -> int:
        """Number of messages that are not committed, including filtered and deleted messages."""
        return max(self.end - self.committed, 0)


class GroupLag(msgspec.Struct, frozen=True):
    """The progress of a group.

    Attributes:
        queues: The queues of the group's topics.
        retry_queues: The queues of the group's retry topics, which hold messages that have failed.
    """

    queues: Mapping[MessageQueue, QueueLag]
    retry_queues: Mapping[MessageQueue, QueueLag]

    @property
    def messages(self) -> int:
        """Number of messages in ``queues`` that are not committed."""
        return sum(each.messages for each in self.queues.values())

    @property
    def retries(self) -> int:
        """Number of messages in ``retry_queues`` that are not committed. Messages whose delay has not passed are not counted."""
        return sum(each.messages for each in self.retry_queues.values())


class OffsetChange(msgspec.Struct, frozen=True):
    """A change of a group's offset in a queue.

    Attributes:
        before: The former offset. None if the group had no offset.
        verified: Whether a read after the change returned ``after`` or a later commit of a member. It is False in a dry run. It
            is also False if the offset was moved back and members had already passed the former offset again when the admin
            read it; in that case, ``Admin.group_lag`` shows their progress.
    """

    queue: MessageQueue
    before: int | None
    after: int
    verified: bool = False


class BrokerOverview(msgspec.Struct, frozen=True):
    """A broker that a name server knows.

    Attributes:
        address: The address of its master, "host:port", or "" if no master is known.
        replicas: Number of its replicas.
        version: The version that it reports, such as "V5_5_0".
        disk_used: The used share of the disk that holds the commit log, from 0 to 1. None if the broker does not report it.
        problem: The reason why its topics and groups are unknown. None if the broker responds.
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
        members: Client ids of the connected members. None if a broker refused the request, as a busy broker does.
        oldest_store_time_ms: Store time of the oldest message that is not committed, epoch ms, without retries. None if there
            is no such message or it could not be read. The admin reads at most two queues for it: those whose last committed
            messages are the oldest.
        oldest_age: Seconds since ``oldest_store_time_ms`` by the clock of the message's broker, or by this machine's clock if
            the broker does not report its time.
        lag_unknown: Brokers that refused the group's offsets. ``lag`` does not include their queues.
    """

    lag: GroupLag
    members: tuple[str, ...] | None
    oldest_store_time_ms: int | None = None
    lag_unknown: tuple[str, ...] = ()
    oldest_age: float | None = None


class Overview(msgspec.Struct, frozen=True):
    """Brokers that a name server knows, and the topics and groups of the brokers that respond, by name.

    Attributes:
        topics_unknown: For each topic, the brokers that refused its offsets, as busy brokers do. The topic's queues on these
            brokers are not in ``topics``.
    """

    brokers: Mapping[str, BrokerOverview]
    topics: Mapping[str, Mapping[MessageQueue, QueueStats]]
    groups: Mapping[str, GroupOverview]
    topics_unknown: Mapping[str, tuple[str, ...]] = {}
