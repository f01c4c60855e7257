"""Reading messages by queue and offset."""

from __future__ import annotations

from .pull_consumer import PullConsumer

__all__ = ["PullConsumer"]
