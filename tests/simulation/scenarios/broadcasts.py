"""Broadcast members: each handles all messages of a topic, continues at its position when it starts again, and shares no
queue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, Final, Literal

from rmq_async.consumer import Consumer, Retry
from rmq_async.errors import RocketMQError
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import MessageExt, MessageQueue

from ..cluster import Cluster
from ..group_log import Sample
from ..loss_checkers import is_bound
from ..watched import Loss
from .groups import FAILURE
from .services import AGAIN, CALM

__all__ = ["broadcast"]

TOPIC: Final = "Plain"
ATTEMPTS: Final = 3
LONGEST_CALL: Final = 1.5
"""Seconds of a handler call at most: less than ``handover_timeout``, so that a stop cancels none."""
CAUGHT_UP_WITHIN: Final = 60.0
"""Seconds after the calm in which each member handles what is left."""


class _Listener:
    """One member over all of its lives, and its store of positions.

    ``_handled``: how often this life has handled a message with success, by place and unique id. ``_attempts``: how often this life
    has tried it. ``_over``: the messages that any life has settled. ``_samples``: what was seen of each life; ``_saved``: the times
    of saves.
    """

    def __init__(self, cluster: Cluster, name: str, until: float) -> None:
        self._cluster = cluster
        self._name = name
        self._until = until
        self._chance = cluster.generator(name)
        self._positions: dict[MessageQueue, int] = {}
        self._handled: Counter[tuple[MessageQueue, int, str]] = Counter()
        self._attempts: Counter[tuple[MessageQueue, int, str]] = Counter()
        self._over: set[tuple[MessageQueue, int, str]] = set()
        self._samples: list[list[Sample]] = []
        self._saved: list[float] = []

    async def load(self, topic: str) -> Mapping[MessageQueue, int]:
        return self._positions

    async def save(self, positions: Mapping[MessageQueue, int], /) -> None:
        await asyncio.sleep(self._chance.random() * 0.05)
        self._positions = dict(positions)
        self._saved.append(self._cluster.now)

    async def run(self) -> None:
        """Runs one consumer after the other, each a life of the member; the last one handles all that is left."""
        cluster, chance = self._cluster, self._chance
        order: Literal["queue"] | None = chance.choice((None, "queue"))
        options: dict[str, Any] = {
            "route_poll_interval": 10.0,
            "start_from": "earliest",
            "concurrency": chance.choice((1, 4, 16)),
            "max_span": chance.choice((16, 2000)),
            "pull_size": chance.choice((1, 32)),
            "retry": Retry(limit=ATTEMPTS - 1, delays=(1,)),
        }
        while True:
            consumer = Consumer("listeners", namesrv=cluster.namesrv, broadcast=self, **options)
            consumer.subscribe(TOPIC, partial(self._handle, chance), order=order)
            self._handled.clear()
            self._attempts.clear()
            last = False
            try:
                async with consumer:
                    watching = asyncio.create_task(self._watch(consumer))
                    try:
                        end = cluster.now + exponential(chance, 60.0)
                        await asyncio.sleep(max(min(end, self._until) - cluster.now, 1.0))
                        if last := cluster.now >= self._until:
                            await cluster.calm(CALM)
                            await self._catch_up()
                    finally:
                        watching.cancel()
            except (RocketMQError, TimeoutError):
                await asyncio.sleep(AGAIN)
            if last:
                return
            await asyncio.sleep(exponential(chance, 5.0))

    async def _watch(self, consumer: Consumer) -> None:
        """Notes what the consumer reads, and its problems, each second."""
        samples: list[Sample] = []
        self._samples.append(samples)
        while True:
            health = consumer.health()
            problems = tuple((each.code, each.text) for each in health.problems)
            samples.append(Sample(self._cluster.now, len(self._samples), health.ready, problems, consumer.assignment))
            await asyncio.sleep(1)

    async def _handle(self, chance: Random, message: MessageExt) -> None:
        place = message.queue, message.queue_offset, message.msg_id
        self._attempts[place] += 1
        await asyncio.sleep(min(exponential(chance, 0.1), LONGEST_CALL))
        if chance.random() < 0.03:
            if self._attempts[place] == ATTEMPTS:
                self._over.add(place)
            raise ValueError(FAILURE)
        self._over.add(place)
        self._handled[place] += 1
        if self._handled[place] > 1 and not self._losses(message.queue):
            self._cluster.violation(f"repeated: {self._name} has handled {message.msg_id} of {message.queue} twice in one life")

    async def _catch_up(self) -> None:
        """Waits until no message is left, for ``CAUGHT_UP_WITHIN`` seconds at most; then reports up to three that are."""
        end = self._cluster.now + CAUGHT_UP_WITHIN
        while (left := self._left()) and self._cluster.now < end:
            await asyncio.sleep(AGAIN)
        for queue, offset, msg_id in left[:3]:
            self._cluster.violation(
                f"unheard: {self._name} has not handled {msg_id}, offset {offset} of {queue}; {len(left)} are left"
            )

    def _losses(self, queue: MessageQueue) -> list[Loss]:
        return [loss for broker in self._cluster.group.brokers() for loss in broker.losses if loss.queue == queue]

    def _may_leave_out(self, queue: MessageQueue, offset: int) -> bool:
        """Returns whether the offset was given out again after a loss that no life of this member could notice."""
        losses = self._losses(queue)
        before = [loss for loss in losses if loss.first <= offset]
        if not before or offset > max(loss.last for loss in losses):
            return False
        return not any(is_bound(samples, before[-1], self._saved, self._cluster.now) for samples in self._samples)

    def _left(self) -> list[tuple[MessageQueue, int, str]]:
        cluster, left = self._cluster, []
        for queue, end in cluster.held_to(TOPIC).items():
            for offset in range(cluster.oldest(queue), end):
                message = cluster.held(queue, offset)
                if message is None or (queue, offset, message.msg_id) in self._over:
                    continue
                if not self._may_leave_out(queue, offset):
                    left.append((queue, offset, message.msg_id))
        return left


async def broadcast(cluster: Cluster, until: float) -> None:
    """Runs two broadcast members, which stop and start again; each of them handles all messages of a topic."""
    names = ("listener-1", "listener-2")
    await asyncio.gather(*(cluster.machine(name).run(_Listener(cluster, name, until).run) for name in names))
