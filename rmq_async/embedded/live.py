"""The brokers of one process as a name server's directory: it reads their current tables."""

from __future__ import annotations

from collections.abc import Sequence

from .broker import Broker
from .directory import Holder
from .server import Connection


class LiveBrokers:
    """The directory of the brokers of one process.

    It lists each broker while the broker listens, with the address by which the client that asks can reach it.
    """

    def __init__(self, brokers: Sequence[Broker]) -> None:
        self._brokers = brokers

    def holders(self, topic: str, connection: Connection) -> list[Holder]:
        return [
            Holder(broker.name, broker.listener.address(connection), found.config, broker.broker_id)
            for broker in self._running()
            if (found := broker.state.topics.get(topic)) is not None
        ]

    def brokers(self, connection: Connection) -> dict[str, dict[int, str]]:
        return {broker.name: {broker.broker_id: broker.listener.address(connection)} for broker in self._running()}

    def topics(self) -> dict[str, None]:
        return dict.fromkeys(topic.config.topic_name for broker in self._running() for topic in broker.state.topics)

    def forget(self, topic: str) -> None:
        """Do nothing: a broker that has the topic would register it again."""

    def expire(self) -> None:
        """Do nothing: no entry expires."""

    def _running(self) -> list[Broker]:
        return [broker for broker in self._brokers if broker.listener.running]
