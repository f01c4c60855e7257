"""Sending: the producer, its settings, and how it chooses queues."""

from __future__ import annotations

from .batches import split_batches
from .batching import Batching
from .config import ProducerConfig
from .faults import FaultTable
from .health import ProducerHealth, ProducerState
from .hooks import Hook, SendContext
from .producer import Producer
from .selectors import Selector, select_at_random, select_best, select_by_hash, select_by_machine_room
from .transactions import TransactionProducer

__all__ = [
    "Batching",
    "FaultTable",
    "Hook",
    "Producer",
    "ProducerConfig",
    "ProducerHealth",
    "ProducerState",
    "Selector",
    "SendContext",
    "TransactionProducer",
    "select_at_random",
    "select_best",
    "select_by_hash",
    "select_by_machine_room",
    "split_batches",
]
