"""Calls hooks around the attempts of sends, and reports attempts as message traces."""

from __future__ import annotations

from .tracer import Tracer
from .watch import Sending, Watch, WatchedAttempt, Watchers
