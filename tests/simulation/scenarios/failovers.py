"""A group with ``start_from="latest"`` whose members stop in order after each failover of a broker, and start again later.

The new master has all messages and no offset of the group. So the group's last offsets are those of its members' stops, and
without them it would pass over what is sent while it is stopped. The topics have one broker: with offsets at another one, the
group would begin with the first message here, and repeat instead of losing.
"""

from __future__ import annotations

import asyncio
from math import inf
from random import Random
from typing import Final

from rmq_async.testing.simulation.faults import exponential

from ..cluster import Cluster
from .groups import LOOK_EVERY, Crew

__all__ = ["failovers"]

LONGEST_ELECTION: Final = 15.0
"""Seconds; a stop waits for a master up to 25 s, of which handlers may take 10."""
LATEST_STOP: Final = 25.0
"""Seconds from the loss of a master to the stops of the members, at most."""
SETTLED: Final = 70.0
"""Seconds without a failover before the next one: members must have seen the last one."""
STARTED: Final = 60.0
"""Seconds in which the first member starts; nothing is sent before."""


async def failovers(cluster: Cluster, until: float) -> None:
    """Runs a group whose members all stop in order soon after each failover, and start again when messages were sent."""
    await _StoppingCrew(cluster, until).run()


class _StoppingCrew(Crew):
    """A crew that is stopped after each failover."""

    name = "failovers"

    def __init__(self, cluster: Cluster, until: float) -> None:
        super().__init__(cluster, until)
        self.size = 1 + self.size % 3
        self.without_kills, self.mean_life = True, until
        self.options["start_from"] = "latest"
        self.ends: dict[str, float] = {}
        """Member -> the time at which its consumer is to stop."""
        self.starts_at = 0.0
        """The time before which no stopped member starts again."""

    async def send_messages(self) -> None:
        while self.cluster.now < STARTED and not self.log.client_ids:
            await asyncio.sleep(LOOK_EVERY)
        await super().send_messages()

    async def _rest(self) -> None:
        """Makes failovers in place of the rests."""
        chance, cluster = self.cluster.generator("failovers"), self.cluster
        while True:
            await asyncio.sleep(SETTLED + exponential(chance, 20.0))
            if cluster.now > self.until - SETTLED:
                return
            (broker,) = cluster.brokers
            election, reads, now = chance.uniform(0.0, LONGEST_ELECTION), chance.random() < 0.5, cluster.now
            if reads:
                broker.lose_master()
            else:
                broker.crash()
            self.ends = {name: now + chance.uniform(0.0, LATEST_STOP) for name in self.members}
            self.starts_at = now + LATEST_STOP + 25.0 + exponential(chance, 5.0)
            self.log.failovers.append((now, now + election))
            await asyncio.sleep(election)
            if not reads:
                broker.restart()
            broker.elect_master()

    def stays(self, name: str, end: float) -> bool:
        return not self.over and self.cluster.now < self.ends.get(name, inf)

    async def pause(self, name: str, chance: Random) -> None:
        if name in self.ends:
            del self.ends[name]
            while not self.over and self.cluster.now < self.starts_at:
                await asyncio.sleep(LOOK_EVERY)
