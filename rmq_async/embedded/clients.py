"""Who is connected: producers and consumers by group, as their heartbeats say.

A client counts from its first heartbeat until it unregisters, its connection ends, or the network side closes it as idle.
"""

from __future__ import annotations

from typing import Final

from rmq_protocol.heartbeat import ConsumerData, SubscriptionData

from .server import Connection

__all__ = ["ClientTable", "ConsumerGroup"]

MAX_GROUPS_PER_CONNECTION: Final = 4096


class ConsumerGroup:
    """``members``: connection by client id. ``subscriptions``: by topic, of the heartbeat that came last."""

    __slots__ = ("consume_type", "members", "message_model", "subscriptions")

    def __init__(self) -> None:
        self.members: dict[str, Connection] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type = ""
        self.message_model = ""


class ClientTable:
    def __init__(self) -> None:
        self.producers: dict[str, dict[str, Connection]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self._fingerprints: dict[str, int] = {}
        self._groups_of: dict[Connection, set[tuple[str, str]]] = {}

    def add_producer(self, group: str, client_id: str, connection: Connection) -> None:
        if self._remember(connection, group, client_id):
            self.producers.setdefault(group, {})[client_id] = connection

    def add_consumer(self, data: ConsumerData, client_id: str, connection: Connection, *, without_subscriptions: bool) -> None:
        if not self._remember(connection, data.group_name, client_id):
            return
        group = self.consumers.setdefault(data.group_name, ConsumerGroup())
        group.members[client_id] = connection
        group.consume_type, group.message_model = data.consume_type, data.message_model
        if not without_subscriptions:
            group.subscriptions = {each.topic: each for each in data.subscription_data_set}

    def fingerprint_changed(self, group: str, fingerprint: int) -> bool:
        """Whether the group's last heartbeat had another fingerprint; this one's is kept."""
        old = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return old is not None and old != fingerprint

    def remove_producer(self, group: str, client_id: str) -> None:
        members = self.producers.get(group, {})
        members.pop(client_id, None)
        if not members:
            self.producers.pop(group, None)

    def remove_consumer(self, group: str, client_id: str) -> None:
        found = self.consumers.get(group)
        if found is not None:
            found.members.pop(client_id, None)
            if not found.members:
                del self.consumers[group]
                self._fingerprints.pop(group, None)

    def disconnected(self, connection: Connection) -> None:
        for group, client_id in self._groups_of.pop(connection, ()):
            if self.producers.get(group, {}).get(client_id) is connection:
                self.remove_producer(group, client_id)
            consumers = self.consumers.get(group)
            if consumers is not None and consumers.members.get(client_id) is connection:
                self.remove_consumer(group, client_id)

    def _remember(self, connection: Connection, group: str, client_id: str) -> bool:
        groups = self._groups_of.setdefault(connection, set())
        if len(groups) >= MAX_GROUPS_PER_CONNECTION or connection.closed:
            return False
        groups.add((group, client_id))
        return True
