"""Members of a group that pop: brokers give each message to one member for a time, and members share no queues.

``core`` receives messages, acknowledges them, gives them back and extends their leases; ``session`` adds the handlers of a
consumer, and ``watching`` reports its condition.
"""

from __future__ import annotations

from .session import PopSession
from .watching import health_of, lag_of, stats_of

__all__ = ["PopSession", "health_of", "lag_of", "stats_of"]
