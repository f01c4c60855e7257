"""Consuming: group consumers, and reading by queue and offset.

The names in ``__all__`` are public; the other imported ones are for the Spark source.
"""

from __future__ import annotations

from ..reading import PullConsumer
from ..reading import PulledBody as PulledBody
from ..reading import PullRequest as PullRequest
from ..reading import SkippedOffsets as SkippedOffsets
from ..reading import deleted_among as deleted_among
from ..reading import may_pass as may_pass
from ..reading import pull_body as pull_body
from ..reading import start_pull as start_pull
from .config import ConsumerConfig, Positions, Retry
from .consumer import Consumer
from .delivery import Delivery, current_delivery
from .handling import Settled
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
    "Outcome",
    "Positions",
    "PullConsumer",
    "Retry",
    "RetryLater",
    "Settled",
    "Subscription",
    "allocate_by_circle",
    "allocate_by_hash",
    "allocate_by_room",
    "allocate_evenly",
    "allocate_near_rooms",
    "current_delivery",
]
