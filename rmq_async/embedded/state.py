"""The state of one embedded broker, which its processors (sends, pulls, queries, clients) share and change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from .check_points import CheckPoints
from .clients import ClientTable
from .directory import Holder
from .disk import BrokerDisk
from .locks import QueueLocks
from .offsets import OffsetTable

REGION: Final = "DefaultRegion"


class BrokerState:
    """The tables of a broker, on its ``disk`` and in memory.

    Args:
        pops_in_store: Whether check points are stored in the key-value store.

    Attributes:
        peers: All brokers of the cluster, including this broker.
        holders: A function that returns the brokers that have a topic, as the name server lists them. By default, it knows only
            this broker.
        address: The "ip:port" of the broker's socket. It is known once the broker listens.
    """

    def __init__(self, disk: BrokerDisk, *, pops_in_store: bool = False) -> None:
        disk.mount()
        if disk.check_points.single != pops_in_store:  # written with other settings, which this broker does not read
            disk.check_points = CheckPoints(single=pops_in_store)
        self.disk = disk
        self.name = disk.name
        self.log = disk.log
        self.topics = disk.topics
        self.groups = disk.groups
        self.offsets = OffsetTable(disk.offsets)
        self.pop_offsets = OffsetTable(disk.pop_offsets)
        self.check_points = disk.check_points
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.peers: Sequence[BrokerState] = (self,)
        self.address = ""
        self.holders: Callable[[str], Iterable[Holder]] = self._this_broker

    def _this_broker(self, topic: str) -> list[Holder]:
        found = self.topics.get(topic)
        return [] if found is None else [Holder(self.name, self.address, found.config)]

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]
