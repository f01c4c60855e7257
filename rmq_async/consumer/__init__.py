"""Group consumers. ``PullConsumer``, which reads by queue and offset, is re-exported from ``reading``."""

from ..reading import PullConsumer
from .config import ConsumerConfig, Positions, Retry
from .consumer import Consumer
from .delivery import Delivery, current_delivery
from .handling import Settled
from .lite import LiteConsumer, LiteConsumerConfig, LiteStart, LiteStream, Tail
from .outcome import Batch, DeadLetter, Outcome, RetryLater
from .reports import ConsumerHealth, ConsumerStats, Lag
from .strategies import Allocate, allocate_by_circle, allocate_by_hash, allocate_by_room, allocate_evenly, allocate_near_rooms
from .subscription import Subscription

__all__ = [
    "Allocate",
    "Batch",
    "Consumer",
    "ConsumerConfig",
    "ConsumerHealth",
    "ConsumerStats",
    "DeadLetter",
    "Delivery",
    "Lag",
    "LiteConsumer",
    "LiteConsumerConfig",
    "LiteStart",
    "LiteStream",
    "Outcome",
    "Positions",
    "PullConsumer",
    "Retry",
    "RetryLater",
    "Settled",
    "Subscription",
    "Tail",
    "allocate_by_circle",
    "allocate_by_hash",
    "allocate_by_room",
    "allocate_evenly",
    "allocate_near_rooms",
    "current_delivery",
]
