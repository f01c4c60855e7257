"""What one embedded broker knows. Plain objects; the processors (sends, pulls, queries, clients) share and change them."""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.validation import broker_group_remark

from .clients import ClientTable
from .service import Refused
from .store import CommitLog
from .topics import FAQ, TopicTable

__all__ = ["CLUSTER", "REGION", "BrokerState"]

CLUSTER: Final = "DefaultCluster"
REGION: Final = "DefaultRegion"
MAX_GROUPS: Final = 10_000
MAX_OFFSETS: Final = 1_000_000


class BrokerState:
    """``offsets``: committed by (group, topic, queue id). ``groups``: consumer groups, which come into being when first used.
    ``address``: "ip:port" of the broker's socket, known once it listens."""

    def __init__(self, name: str, log: CommitLog, *, auto_create_topics: bool) -> None:
        self.name = name
        self.log = log
        self.topics = TopicTable(name, CLUSTER, auto_create=auto_create_topics)
        self.clients = ClientTable()
        self.groups: set[str] = set()
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.address = ""

    @property
    def ip(self) -> str:
        return self.address.rpartition(":")[0]

    def use_group(self, group: str) -> None:
        """Raises Refused (26) for a name that no group can have."""
        if group in self.groups:
            return
        if broker_group_remark(group) is not None or len(self.groups) >= MAX_GROUPS:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group[:160]}] does not exist, \n{FAQ}", {}
            )
        self.groups.add(group)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = (group, topic, queue_id)
        if key not in self.offsets and len(self.offsets) >= MAX_OFFSETS:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"this broker keeps {MAX_OFFSETS} offsets, it takes no more")
        self.offsets[key] = offset
