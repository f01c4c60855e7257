"""Gathers messages into batches: those of one loop iteration, those that wait for earlier requests, and those of ``linger``."""

from __future__ import annotations

from .batcher import Batcher
from .ordered_sends import OrderedSends
from .queue_gathering import QueueGathering
from .unordered_sends import UnorderedSends

__all__ = ["Batcher", "OrderedSends", "QueueGathering", "UnorderedSends"]
