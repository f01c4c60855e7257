"""The group: its members, this member's share of the queues, and the handover of queues between members."""

from __future__ import annotations

from .allocation import merged_members, share_of
from .handover import Takeover
from .queue_locks import QueueLocks, handover_group
from .rebalance import Rebalance
from .start_position import StartFrom, first_positions, start_offset, store_positions

__all__ = [
    "QueueLocks",
    "Rebalance",
    "StartFrom",
    "Takeover",
    "first_positions",
    "handover_group",
    "merged_members",
    "share_of",
    "start_offset",
    "store_positions",
]
