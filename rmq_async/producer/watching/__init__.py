"""Calls hooks around the attempts of sends, and reports attempts as message traces."""

from __future__ import annotations

from .receivers import Answer, TracedReceiver, WatchedReceiver
from .tracer import Tracer
from .watch import Sending, Watch, WatchedAttempt, Watchers

__all__ = [
    "Answer",
    "Sending",
    "TracedReceiver",
    "Tracer",
    "Watch",
    "WatchedAttempt",
    "WatchedReceiver",
    "Watchers",
]
