"""Broadcast: each member reads all queues of its topics, keeps its positions itself, and retries what fails in place.

The rooms of a group consumer (``..group``, commits, outcomes) in the form that needs no other member and no broker: no locks, no
allocation, no committed offsets, no retry topic.
"""

from __future__ import annotations

from .broadcasting import Broadcasting
from .saved_positions import SavedPositions

__all__ = ["Broadcasting", "SavedPositions"]
