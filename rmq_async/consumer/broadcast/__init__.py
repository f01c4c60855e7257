"""Broadcast. Each member reads all queues of its topics, keeps its own positions, and itself repeats failed messages.

The modules replace the parts of a group consumer that depend on other members and on state at brokers (``..group``, commits,
outcomes). In broadcast there are no locks, no allocation, no committed offsets, and no retry topic.
"""

from .broadcast_member import Broadcasting
from .saved_positions import SavedPositions
