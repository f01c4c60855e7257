"""Sending: the producer and how it chooses queues."""

from __future__ import annotations

from .producer import Producer, ProducerState
from .selectors import Selector, select_at_random, select_by_hash

__all__ = ["Producer", "ProducerState", "Selector", "select_at_random", "select_by_hash"]
