"""The directory of a name server. It lists brokers, either from their registrations (``Registrations``) or from broker objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from rmq_protocol.constants import MASTER_ID
from rmq_protocol.topics import TopicConfig

from .. import machine
from .server import Connection
from .topics import CLUSTER

EXPIRY: Final = 120.0
"""Seconds without a registration after which a name server removes a broker
(``RouteInfoManager.DEFAULT_BROKER_CHANNEL_EXPIRED_TIME``)."""


class Registration(NamedTuple):
    """The data that a broker registers with a name server (REGISTER_BROKER).

    Attributes:
        address: "ip:port" for clients.
        topics: Topics by name.
        broker_id: 0 for a master.
    """

    broker_name: str
    address: str
    topics: Mapping[str, TopicConfig]
    cluster: str = CLUSTER
    broker_id: int = MASTER_ID


class Holder(NamedTuple):
    """A broker that has a topic.

    Attributes:
        address: "ip:port".
        config: The topic's settings on this broker.
        broker_id: 0 for a master.
    """

    broker_name: str
    address: str
    config: TopicConfig
    broker_id: int = MASTER_ID


class BrokerDirectory(Protocol):
    """The brokers that a name server knows at the moment. The argument ``connection`` is the connection of the requesting
    client.
    """

    def holders(self, topic: str, connection: Connection) -> Sequence[Holder]:
        """Return the brokers that have ``topic``."""

    def brokers(self, connection: Connection) -> Mapping[str, dict[int, str]]:
        """Return the brokers by name, each as a mapping from broker id to address ("ip:port")."""

    def topics(self) -> Iterable[str]:
        """Return the names of all topics, broker by broker, without repetitions."""

    def forget(self, topic: str) -> None:
        """Delete the topic from the directory but not from the brokers (DELETE_TOPIC_IN_NAMESRV)."""

    def expire(self) -> None:
        """Remove expired entries. The name server calls this method every few seconds."""


class _Entry:
    __slots__ = ("address", "broker_id", "seen", "topics")

    def __init__(self) -> None:
        self.address = ""
        self.broker_id = MASTER_ID
        self.seen = 0.0
        self.topics: dict[str, TopicConfig] = {}


class Registrations:
    """The directory of one name server, which it keeps in memory. A restarted name server begins with an empty directory.

    Brokers register every 30 s and after each change of their topics, with every name server: call ``register`` for each
    registration that arrives. As in a stock name server, a topic that is missing from a later registration stays until
    ``forget`` is called or the broker is removed. A broker is removed ``EXPIRY`` seconds after its last registration, or by
    ``unregister``.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def register(self, registration: Registration) -> None:
        self.expire()
        entry = self._entries.setdefault(registration.broker_name, _Entry())
        entry.address, entry.broker_id = registration.address, registration.broker_id
        entry.seen = machine.monotonic()
        entry.topics.update(registration.topics)

    def unregister(self, broker_name: str) -> None:
        """Remove the broker at once. Call this method when the broker stops gracefully or when the connection of its
        registration ends.
        """
        self._entries.pop(broker_name, None)

    def holders(self, topic: str, connection: Connection) -> list[Holder]:
        return [
            Holder(name, entry.address, entry.topics[topic], entry.broker_id)
            for name, entry in self._known().items()
            if topic in entry.topics
        ]

    def brokers(self, connection: Connection) -> dict[str, dict[int, str]]:
        return {name: {entry.broker_id: entry.address} for name, entry in self._known().items()}

    def topics(self) -> dict[str, None]:
        return dict.fromkeys(topic for entry in self._known().values() for topic in entry.topics)

    def forget(self, topic: str) -> None:
        for entry in self._entries.values():
            entry.topics.pop(topic, None)

    def expire(self) -> None:
        oldest = machine.monotonic() - EXPIRY
        self._entries = {name: entry for name, entry in self._entries.items() if entry.seen > oldest}

    def _known(self) -> dict[str, _Entry]:
        self.expire()
        return self._entries
