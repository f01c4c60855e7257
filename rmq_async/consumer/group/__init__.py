"""The consumer group: its members, this member's share of the queues, and the handover of queues between members."""

from .closed_queues import ClosedQueues
from .commits import Commits, Doubts
from .conflicts import Conflicts
from .handover import LOOK_PATIENCE, Holders, Open, Takeover, find_holders
from .member_locks import MemberLocks
from .positions import StartFrom, first_positions, from_brokers, offset_at, start_offset, store_positions, warn_of_silent
from .queue_locks import QueueLocks, handover_group
from .rebalance import Apply, Missing, Rebalance, merged_members, share_of
from .settings import GroupLimits, joined_settings, missing_group, settings_at
from .subscription_check import BY_OFFSET, MODE, MODEL, GroupView, SubscriptionConflict, check_filter, compare, group_view
