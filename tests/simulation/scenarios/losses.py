"""A group whose only broker crashes again and again, and starts with fewer messages than its members have read.

Such a broker lists the members one by one when it has started. So a queue may be for a moment with a member that knows nothing of
the loss. The group's offset there is one of before the crash: it lies above the queue's end, or above new messages.
"""

from __future__ import annotations

import asyncio
from typing import Final

from rmq_async.testing.simulation.faults import exponential

from ..cluster import Cluster
from .groups import Crew

__all__ = ["losses"]

LONGEST_CRASH: Final = 8.0
"""Seconds."""
MOST_LOST: Final = 80
"""Messages."""


async def losses(cluster: Cluster, until: float) -> None:
    """Runs a group whose broker crashes, and starts with fewer messages."""
    await _LosingCrew(cluster, until).run()


class _LosingCrew(Crew):
    """A crew of two or three members that stay, with handovers of half a second in some seeds."""

    name = "losses"

    def __init__(self, cluster: Cluster, until: float) -> None:
        super().__init__(cluster, until)
        self.size = 2 + self.size % 2
        self.without_faults, self.without_kills, self.mean_life = False, True, 10 * until
        self.options["handover_timeout"] = self.chance.choice((0.5, 2.0, 10.0))
        self.options["max_span"] = 2000
        self.sends_every = 0.5

    async def _rest(self) -> None:
        """Makes losses in place of the rests."""
        chance, cluster = self.cluster.generator("losses"), self.cluster
        (broker,) = cluster.brokers
        while True:
            await asyncio.sleep(5.0 + exponential(chance, 15.0))
            if cluster.now > self.until - LONGEST_CRASH:
                return
            began = cluster.now
            if chance.random() < 0.5:
                broker.power_loss()
            else:
                broker.crash()
            await asyncio.sleep(chance.uniform(0.5, LONGEST_CRASH))
            broker.truncate(chance.randint(1, MOST_LOST))
            broker.restart()
            self.log.failovers.append((began, cluster.now))
