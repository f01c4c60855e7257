"""The connected clients: producers and consumers by group, as listed in their heartbeats.

A heartbeat adds a client. The client is removed when it unregisters, when its connection ends, or by ``expire``.

Names and subscriptions come from the network, so their number and size are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from rmq_protocol.constants import LanguageCode, ResponseCode
from rmq_protocol.heartbeat import ConsumerData, MessageModel, SubscriptionData

from .. import machine
from .server import Connection
from .service import Refused
from .tables import drop

EXPIRY: Final = 120.0
"""Seconds without a heartbeat after which a client is removed (``channelExpiredTimeout``)."""
MAX_GROUPS_PER_CONNECTION: Final = 4096
MAX_MEMBERS: Final = 200_000
"""Maximum number of clients of all groups together. A client that is in three groups counts three times."""
MAX_NAME_LENGTH: Final = 512
"""Maximum number of characters of the name of a group or the id of a client."""
MAX_SUBSCRIPTION_BYTES: Final = 32 * 1024 * 1024
_WORD: Final = 64
"""Maximum number of characters that are stored of a setting such as the message model."""
_SUBSCRIPTION_OVERHEAD: Final = 400
_TAG_OVERHEAD: Final = 100


class Client:
    """One member of one group.

    Attributes:
        seen: The time of the client's last heartbeat (``machine.monotonic``).
    """

    def __init__(self, client_id: str, connection: Connection, language: LanguageCode | None, version: int) -> None:
        self.client_id = client_id
        self.connection = connection
        self.language = LanguageCode.OTHER if language is None else language
        self.version = version
        self.seen = machine.monotonic()


class ConsumerGroup:
    """The members of a group, and the group's settings from the last heartbeat of a member.

    Attributes:
        members: Members by client id and connection. A client with two connections, for example after a connection broke, is
            listed twice, as on a real broker.
        subscriptions: Subscriptions by topic.
    """

    def __init__(self) -> None:
        self.members: dict[tuple[str, Connection], Client] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type = ""
        self.message_model = ""
        self.consume_from_where = ""
        self.size = 0
        """Approximate number of bytes of the subscriptions."""

    @property
    def is_broadcast(self) -> bool:
        return self.message_model == MessageModel.BROADCASTING

    def ids(self) -> tuple[str, ...]:
        """Return the ids of the members. A member with several connections is listed once per connection."""
        return tuple(client_id for client_id, _ in self.members)

    def find(self, client_id: str) -> Client | None:
        """Return the member with this id, on its newest connection. Return None if there is no such member."""
        return next((member for member in reversed(self.members.values()) if member.client_id == client_id), None)

    def merged(self, data: ConsumerData) -> dict[str, SubscriptionData]:
        """Return the group's subscriptions after a heartbeat: one for each topic in the heartbeat. A known subscription is kept
        unless the heartbeat has a newer one.
        """
        new = {each.topic: each for each in data.subscription_data_set}
        for topic, subscription in new.items():
            known = self.subscriptions.get(topic)
            if known is not None and known.sub_version >= subscription.sub_version:
                new[topic] = known
        return new


class ClientTable:
    """The connected clients, by group.

    ``changed`` is called with the name of a group whose members or topics have changed. It is not called for broadcasting
    groups, nor when the last member has left.
    """

    def __init__(self) -> None:
        self.producers: dict[str, dict[str, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.changed: Callable[[str], None] = lambda group: None
        self._reachable: dict[str, Client] = {}
        """Clients to which replies are pushed, by client id."""
        self._fingerprints: dict[str, int] = {}
        self._groups_of: dict[Connection, dict[tuple[str, str], None]] = {}
        self._members = 0
        self._size = 0
        self._turn = 0

    def add_producer(self, group: str, client: Client) -> None:
        """Add a producer, or renew its entry.

        Raises:
            Refused: With code 1 if a limit of the table would be exceeded, or if the connection is closed.
        """
        members = self.producers.get(group, {})
        old = members.get(client.client_id)
        self._enter(group, client, old)
        self.producers.setdefault(group, members)[client.client_id] = client
        if old is None or old.connection is not client.connection:
            self._reachable[client.client_id] = client

    def add_consumer(self, data: ConsumerData, client: Client, *, without_subscriptions: bool) -> None:
        """Add a consumer, or renew its entry. Update the subscriptions of its group, unless the heartbeat came
        ``without_subscriptions``.

        Raises:
            Refused: With code 1 if a limit of the table would be exceeded, or if the connection is closed.
        """
        name = data.group_name
        group = self.consumers.get(name) or ConsumerGroup()
        subscriptions = group.subscriptions if without_subscriptions else group.merged(data)
        size = sum(map(_size, subscriptions.values()))
        if size > group.size and self._size + size - group.size > MAX_SUBSCRIPTION_BYTES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"subscriptions would take {self._size + size - group.size} bytes, the limit of this broker is "
                f"{MAX_SUBSCRIPTION_BYTES}; subscribe to fewer topics or tags",
            )
        key = (client.client_id, client.connection)
        old = group.members.get(key)
        self._enter(name, client, old)
        self.consumers[name] = group
        group.members[key] = client
        group.consume_type, group.message_model = data.consume_type[:_WORD], data.message_model[:_WORD]
        group.consume_from_where = data.consume_from_where[:_WORD]
        changed = old is None or group.subscriptions.keys() != subscriptions.keys()
        group.subscriptions = subscriptions
        self._size += size - group.size
        group.size = size
        if changed:
            self._announce(name, group)

    def fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Store the fingerprint of a heartbeat. Return whether the group's previous heartbeat had a different fingerprint."""
        old = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return old is not None and old != fingerprint

    def find_producer(self, client_id: str) -> Client | None:
        """Return the client with this id, to which a reply is pushed. Return None if the client is not known."""
        # As in a real broker's ProducerManager, the first heartbeat of a producer group on a connection adds the client. The
        # client is removed when any of its producer groups unregisters or expires, or when a connection ends on which one of
        # these groups sent a heartbeat. Heartbeats of its other groups do not add it again.
        return self._reachable.get(client_id)

    def producer_connection(self, group: str) -> Connection | None:
        """Return the connection of a producer of the group; the producers take turns. Return None if no producer has an open
        connection from which it reads.
        """
        members = list(self.producers.get(group, {}).values())
        for _ in members:
            self._turn += 1
            connection = members[self._turn % len(members)].connection
            if not connection.closed and not connection.congested:
                return connection
        return None

    def groups_of_topic(self, topic: str) -> Iterator[str]:
        return (name for name, group in self.consumers.items() if topic in group.subscriptions)

    def remove_producer(self, group: str, client_id: str) -> None:
        client = self.producers.get(group, {}).get(client_id)
        if client is not None:
            drop(self.producers, group, client_id)
            self._leave(group, client)
            self._reachable.pop(client_id, None)

    def remove_consumer(self, group: str, client_id: str, connection: Connection) -> None:
        """Remove the client on this connection. Its entries for other connections stay."""
        found = self.consumers.get(group)
        client = found.members.pop((client_id, connection), None) if found is not None else None
        if found is None or client is None:
            return
        self._leave(group, client)
        if found.members:
            self._announce(group, found)
        else:
            self._size -= found.size
            del self.consumers[group]
            self._fingerprints.pop(group, None)

    def disconnected(self, connection: Connection) -> None:
        for group, client_id in list(self._groups_of.get(connection, ())):
            self._remove_from(group, client_id, connection)
            if client_id in self.producers.get(group, ()):
                self._reachable.pop(client_id, None)  # even if it has a newer connection: see find_producer
        self._groups_of.pop(connection, None)

    def expire(self) -> None:
        """Remove clients that have sent no heartbeat for ``EXPIRY`` seconds. Close their connections unless other members use
        them.
        """
        oldest = machine.monotonic() - EXPIRY
        silent = [
            (group, member)
            for table in (self.producers, {name: group.members for name, group in self.consumers.items()})
            for group, members in table.items()
            for member in members.values()
            if member.seen < oldest
        ]
        for group, member in silent:
            self._remove_from(group, member.client_id, member.connection)
        for connection in dict.fromkeys(member.connection for _, member in silent):
            if connection not in self._groups_of:
                connection.close()

    def _is_member(self, group: str, client_id: str, connection: Connection) -> bool:
        """Return whether the client is a producer or consumer of the group on this connection."""
        producer = self.producers.get(group, {}).get(client_id)
        consumers = self.consumers.get(group)
        return (producer is not None and producer.connection is connection) or (
            consumers is not None and (client_id, connection) in consumers.members
        )

    def _remove_from(self, group: str, client_id: str, connection: Connection) -> None:
        producer = self.producers.get(group, {}).get(client_id)
        if producer is not None and producer.connection is connection:
            self.remove_producer(group, client_id)
        self.remove_consumer(group, client_id, connection)

    def _enter(self, group: str, client: Client, old: Client | None) -> None:
        """Check the limits, and record the member for its connection. Count it, unless it replaces ``old``.

        Raises:
            Refused: With code 1 if a limit would be exceeded, or if the connection is closed.
        """
        connection = client.connection
        for name in (group, client.client_id):
            if len(name) > MAX_NAME_LENGTH:
                remark = f"the name {name[:80]!r} has {len(name)} characters, the limit is {MAX_NAME_LENGTH}; shorten it"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        if connection.closed:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the connection of {connection.remote} is closed; connect again")
        groups = self._groups_of.get(connection, {})
        key = (group, client.client_id)
        if key not in groups and len(groups) >= MAX_GROUPS_PER_CONNECTION:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this connection has {MAX_GROUPS_PER_CONNECTION} groups, the maximum; use another connection",
            )
        if old is None:
            if self._members >= MAX_MEMBERS:
                remark = f"this broker has {MAX_MEMBERS} group members, the maximum; stop some"
                raise Refused(ResponseCode.SYSTEM_ERROR, remark)
            self._members += 1
        groups[key] = None
        self._groups_of[connection] = groups

    def _leave(self, group: str, client: Client) -> None:
        self._members -= 1
        if not self._is_member(group, client.client_id, client.connection):
            drop(self._groups_of, client.connection, (group, client.client_id))

    def _announce(self, name: str, group: ConsumerGroup) -> None:
        if not group.is_broadcast:
            self.changed(name)


def _size(subscription: SubscriptionData) -> int:
    tags = subscription.tags_set
    return (
        _SUBSCRIPTION_OVERHEAD
        + 4 * (len(subscription.topic) + len(subscription.sub_string) + len(subscription.expression_type) + sum(map(len, tags)))
        + _TAG_OVERHEAD * (len(tags) + len(subscription.code_set))
    )
