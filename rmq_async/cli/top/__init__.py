"""The command ``rmq top``: a live view of topics, groups and brokers."""

from __future__ import annotations

from .command import top

__all__ = ["top"]
