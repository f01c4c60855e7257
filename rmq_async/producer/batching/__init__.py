"""Gathers messages into batches while requests are in flight. Otherwise a message waits for others only if ``linger`` is set."""

from __future__ import annotations

from .batcher import Batcher
from .ordered_sends import OrderedSends
from .queue_gathering import QueueGathering
from .unordered_sends import UnorderedSends

__all__ = ["Batcher", "OrderedSends", "QueueGathering", "UnorderedSends"]
