"""Gathers messages into batches while requests are in flight; without a request in flight a message waits only to linger."""

from __future__ import annotations

from .batcher import Batcher
from .ordered_sends import OrderedSends
from .queue_gathering import QueueGathering
from .unordered_sends import UnorderedSends

__all__ = ["Batcher", "OrderedSends", "QueueGathering", "UnorderedSends"]
