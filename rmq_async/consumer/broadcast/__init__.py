"""Broadcast: each member reads all queues of its topics, keeps its positions itself, and handles failed messages again itself.

The modules replace those of a group consumer (``..group``, commits, outcomes) by parts that need no other member and no
broker: no locks, no allocation, no committed offsets, no retry topic.
"""

from __future__ import annotations

from .broadcasting import Broadcasting
from .saved_positions import SavedPositions

__all__ = ["Broadcasting", "SavedPositions"]
