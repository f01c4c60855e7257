"""The state of one embedded broker: objects that the processors (sends, pulls, queries, clients) share and change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .clients import ClientTable
from .groups import SubscriptionGroups
from .locks import QueueLocks
from .offsets import OffsetTable
from .store import CommitLog
from .topics import TopicTable

__all__ = ["CLUSTER", "REGION", "BrokerState"]

CLUSTER: Final = "DefaultCluster"
REGION: Final = "DefaultRegion"


class BrokerState:
    """``peers``: all brokers of the cluster, this one included. ``address``: "ip:port" of the broker's socket, known once it
    listens."""

    def __init__(self, name: str, log: CommitLog, *, auto_create_topics: bool) -> None:
        self.name = name
        self.log = log
        self.topics = TopicTable(name, CLUSTER, auto_create=auto_create_topics)
        self.clients = ClientTable()
        self.groups = SubscriptionGroups()
        self.offsets = OffsetTable()
        self.locks = QueueLocks()
        self.peers: Sequence[BrokerState] = (self,)
        self.address = ""

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]
