"""The command ``rmq consume``: a member of a consumer group that prints messages or runs a command for each."""

from __future__ import annotations

from .command import consume

__all__ = ["consume"]
