"""Topics, offsets, messages and clients, from the outside: what an operator or a test sets up and looks at."""

from __future__ import annotations

from .admin import Admin
from .results import ClientConnection, ConsumerConnections, QueueStats, SyncedTopic, TopicStats

__all__ = ["Admin", "ClientConnection", "ConsumerConnections", "QueueStats", "SyncedTopic", "TopicStats"]
