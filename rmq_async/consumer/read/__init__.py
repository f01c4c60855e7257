"""Reads queues at chosen offsets, without sharing them in a group: ``PullConsumer`` and its streams."""

from __future__ import annotations

from .backoff import may_pass
from .continuity import SkippedOffsets, deleted_among
from .pull_consumer import PullConsumer

__all__ = ["PullConsumer", "SkippedOffsets", "deleted_among", "may_pass"]
