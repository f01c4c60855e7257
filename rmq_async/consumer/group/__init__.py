"""The consumer group: what its members agree on through the brokers."""

from __future__ import annotations

from .queue_locks import QueueLocks, handover_group

__all__ = ["QueueLocks", "handover_group"]
