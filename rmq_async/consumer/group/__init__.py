"""The consumer group: its members, this member's share of the queues, and the handover of queues between members."""

from __future__ import annotations

from .allocation import merged_members, share_of
from .conflicts import Conflicts
from .filter_check import check_filter
from .handover import LOOK_PATIENCE, Takeover
from .holders import Holders, find_holders
from .member_locks import MemberLocks
from .missing import Missing
from .queue_locks import QueueLocks, handover_group
from .rebalance import Rebalance
from .start_position import (
    StartFrom,
    first_positions,
    from_brokers,
    offset_at,
    start_offset,
    store_positions,
    warn_of_silent,
)
from .subscription_check import MODE, MODEL, GroupView, SubscriptionConflict, compare, group_view

__all__ = [
    "LOOK_PATIENCE",
    "MODE",
    "MODEL",
    "Conflicts",
    "GroupView",
    "Holders",
    "MemberLocks",
    "Missing",
    "QueueLocks",
    "Rebalance",
    "StartFrom",
    "SubscriptionConflict",
    "Takeover",
    "check_filter",
    "compare",
    "find_holders",
    "first_positions",
    "from_brokers",
    "group_view",
    "handover_group",
    "merged_members",
    "offset_at",
    "share_of",
    "start_offset",
    "store_positions",
    "warn_of_silent",
]
