"""The producer, its settings, hooks and queue selectors.

``__all__`` lists the public names. The other names are imported by the outbox and the Spark sink.
"""

from ..hooks import Hook, SendContext
from .config import Batching, ProducerConfig
from .health import ProducerHealth, ProducerState
from .life import check_here as check_here
from .prepared import PreparedSend as PreparedSend
from .prepared import compress_prepared as compress_prepared
from .prepared import prepare as prepare
from .prepared import queues_instead as queues_instead
from .prepared import send_prepared as send_prepared
from .producer import Producer
from .routing import FaultTable, Selector, select_at_random, select_best, select_by_hash, select_by_machine_room
from .splitting import split_batches
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
