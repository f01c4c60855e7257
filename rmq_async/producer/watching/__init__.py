"""Calls hooks around the attempts of sends, and reports attempts as message traces."""

from .tracer import Tracer
from .watch import Sending, Watch, WatchedAttempt, Watchers
