"""Gathers messages into batches: those of one loop iteration, those that wait for earlier requests, and those of ``linger``."""

from __future__ import annotations

from .batcher import Batcher, QueueGathering
from .sends import AskingFuture, OrderedSends, UnorderedSends, abandon, may_share

__all__ = ["AskingFuture", "Batcher", "OrderedSends", "QueueGathering", "UnorderedSends", "abandon", "may_share"]
