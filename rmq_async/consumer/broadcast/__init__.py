"""Broadcast: each member reads all queues of its topics, keeps its positions itself, and itself handles failed messages again.

The modules replace parts of a group consumer (``..group``, commits, outcomes) that depend on other members and on state at
brokers: here are no locks, no allocation, no committed offsets, and no retry topic.
"""

from .broadcast_member import Broadcasting
from .saved_positions import SavedPositions
