"""Gathering single messages into batches while requests are under way, at no wait while none are."""

from __future__ import annotations

from .settings import Batching

__all__ = ["Batching"]
