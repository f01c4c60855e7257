"""New groups that start at the end of a topic while queues are added: what is sent after ``start()`` has returned is theirs."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, NameServerError, Producer, RequestTimeoutError, RocketMQError
from rmq_async.testing.cluster import RealCluster

__all__ = ["Starts", "new_groups"]

FIRST_QUEUES = 2
POLL = 0.5
"""Seconds between two looks at the routes, for producer and consumers."""
PATIENCE = 30.0
LISTENS = 1.0
"""Seconds for which messages are sent after a group has started."""


class Starts(msgspec.Struct):
    """``sent``: messages that were sent. ``due``: deliveries of messages whose send began after ``start()`` had returned; of these
    ``missed`` did not come and ``twice`` came more than once. ``in_new_queues``: came from queues that the topic did not have when
    the start began. ``queues_hidden``: that the name server did not show before the next one. ``longest_start``: seconds."""

    groups: int = 0
    sent: int = 0
    failed: int = 0
    due: int = 0
    missed: int = 0
    twice: int = 0
    in_new_queues: int = 0
    queues_added: int = 0
    queues_hidden: int = 0
    longest_start: float = 0.0


@dataclass
class _Round:
    """Groups on one topic."""

    real: RealCluster
    found: Starts
    chance: random.Random
    topic: str = field(default_factory=lambda: f"starts-{uuid.uuid4().hex[:12]}")
    queues: int = FIRST_QUEUES
    next: int = 0
    open: set[int] = field(default_factory=set)
    """Numbers whose send is not answered yet."""
    failed: set[int] = field(default_factory=set)

    async def send(self, producer: Producer, rate: float) -> None:
        calls: set[asyncio.Task[None]] = set()
        began = monotonic()
        try:
            while True:
                while self.next < (monotonic() - began) * rate:
                    number = self.next
                    self.next += 1
                    self.open.add(number)
                    call = asyncio.create_task(self._one(producer, number))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
                await asyncio.sleep(0.005)
        finally:
            await asyncio.gather(*calls)

    async def _one(self, producer: Producer, number: int) -> None:
        try:
            await producer.send(Message(self.topic, b"%d" % number))
            self.found.sent += 1
        except RocketMQError:
            self.failed.add(number)
            self.found.failed += 1
        finally:
            self.open.discard(number)

    async def add_queues(self, admin: Admin, most: int) -> None:
        while self.queues < most:
            await asyncio.sleep(self.chance.uniform(0.0, 0.4))
            self.queues += 1
            try:
                await admin.create_topic(self.topic, queues=self.queues)
            except (RequestTimeoutError, NameServerError):
                # A name server of 5.5.0 ignores a change of a topic that reaches it behind another topic's with the same version of
                # the table, as those of retry topics do here. The next change takes this one along.
                self.found.queues_hidden += 1
            else:
                self.found.queues_added += 1

    async def group(self, delay: float, *, sees_new_queue: bool = False) -> None:
        """Starts one group; counts what it gets of the messages sent in the second after its start, or until it has got one from a
        new queue: a busy broker may need longer than all starts to add the first."""
        await asyncio.sleep(delay)
        name = f"group-{uuid.uuid4().hex[:12]}"
        came: dict[int, int] = defaultdict(int)
        new_queues = 0

        async def handle(message: MessageExt) -> None:
            nonlocal new_queues
            came[int(message.body)] += 1
            new_queues += message.queue.queue_id >= queues_before

        consumer = Consumer(name, namesrv=self.real.namesrv, instance_name=name, route_poll_interval=POLL, start_from="latest")
        consumer.subscribe(self.topic, handle)
        queues_before, began = self.queues, monotonic()
        await consumer.start()
        first, took = self.next, monotonic() - began
        await asyncio.sleep(LISTENS)
        while sees_new_queue and not new_queues and monotonic() < began + PATIENCE:
            await asyncio.sleep(0.02)
        end, deadline = self.next, monotonic() + PATIENCE
        while any(number < end for number in self.open):
            await asyncio.sleep(0.01)
        due = set(range(first, end)) - self.failed
        while not due <= came.keys() and monotonic() < deadline:
            await asyncio.sleep(0.02)
        await consumer.stop()
        found = self.found
        found.groups += 1
        found.due += len(due)
        found.missed += len(due - came.keys())
        found.twice += sum(came[number] > 1 for number in due)
        found.in_new_queues += new_queues
        found.longest_start = round(max(found.longest_start, took), 2)


async def new_groups(real: RealCluster, rounds: int, groups: int, queues: int, rate: float, seed: int) -> Starts:
    """In each round ``groups`` groups start within 1.5 s on a topic of 2 queues, which gets up to ``queues``; ``rate`` messages a
    second are sent to it."""
    found = Starts()
    chance = random.Random(seed)
    async with (
        Admin(namesrv=real.namesrv) as admin,
        Producer(f"sender-{uuid.uuid4().hex[:12]}", namesrv=real.namesrv, route_poll_interval=POLL) as producer,
    ):
        for _ in range(rounds):
            each = _Round(real, found, chance)
            await admin.create_topic(each.topic, queues=FIRST_QUEUES)
            sending = asyncio.create_task(each.send(producer, rate))
            adding = asyncio.create_task(each.add_queues(admin, queues))
            delays = [chance.uniform(0.0, 1.5) for _ in range(groups)]
            await asyncio.gather(*(each.group(delay, sees_new_queue=not number) for number, delay in enumerate(delays)))
            await adding
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
    return found
