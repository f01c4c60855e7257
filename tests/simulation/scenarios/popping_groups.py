"""Members of a group that pop, under the faults and kills of ``groups`` and the faults of pops."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any, Final

from rmq_async.consumer import Consumer, Retry
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import MessageExt

from ..cluster import Cluster
from ..group_log import GROUP, GroupLog
from .groups import Crew, decide

__all__ = ["pop"]

LONGEST_CALL: Final = 25.0
"""Seconds of a handler call at most: longer than some leases, which are renewed."""
LONGEST_DRAIN: Final = 120.0
"""Seconds after the calm, at most, in which the rest is popped and handled: a lease may have to run out before, or a message be
tried again."""
LOOK_EVERY: Final = 2.0


async def pop(cluster: Cluster, until: float) -> None:
    """Runs a group of one to six members that pop: they join, stop and are killed while messages are sent to them."""
    await _PoppingCrew(cluster, until).run()


class _PoppingCrew(Crew):
    name = "pop"

    def __init__(self, cluster: Cluster, until: float) -> None:
        super().__init__(cluster, until)
        chance = self.chance
        self.size = chance.randint(1, 6)
        self.log.lease = lease = chance.choice((20.0, 30.0))
        self.log.attempts = 4
        self.options: dict[str, Any] = {
            "mode": "pop",
            "route_poll_interval": 10.0,
            "start_from": "earliest",
            "concurrency": chance.choice((4, 16, 64)),
            "pull_size": chance.choice((1, 8, 32)),
            "buffered_limit": chance.choice((64, 4096)),
            "invisible_time": lease,
            "max_lease": 120.0,
            "retry": Retry(limit=self.log.attempts - 1, delays=(1, 5)),
        }

    async def run(self) -> None:
        await super().run()
        self.log.look_for_pops()

    def look_at_rest(self) -> None:
        super().look_at_rest()
        self.log.look_for_pops()

    async def _drained(self) -> None:
        end = self.cluster.now + LONGEST_DRAIN
        while self.cluster.now < end:
            await asyncio.sleep(LOOK_EVERY)
            unread = self.log.look_for_pops()
            if not unread.queues and not unread.in_flight:
                return

    def consumer(self, chance: Random, life: int) -> Consumer:
        consumer = Consumer(GROUP, namesrv=self.cluster.namesrv, **self.options)
        for topic in self.topics:
            consumer.subscribe(topic, partial(_handle, self.log, chance, life))
        return consumer


async def _handle(log: GroupLog, chance: Random, life: int, message: MessageExt) -> None:
    delivery = log.begin(message, life)
    try:
        await asyncio.sleep(min(exponential(chance, 8.0 if chance.random() < 0.02 else 0.15), LONGEST_CALL))
    except asyncio.CancelledError:
        log.end(delivery, "cancelled")
        raise
    decide(log, chance, delivery)
