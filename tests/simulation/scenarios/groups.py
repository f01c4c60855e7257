"""Members of a consumer group under faults: they join, stop in order and are killed while messages are sent to their topics.

The simulation's ``group`` records their actions, which ``group_checkers`` checks after the run.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from random import Random
from typing import Any, Final

from rmq_async.admin import Admin
from rmq_async.consumer import Consumer, DeadLetter, Retry, RetryLater
from rmq_async.errors import RocketMQError
from rmq_async.producer import Producer
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import Message, MessageExt

from ..cluster import Cluster
from ..group_log import GROUP, GroupLog
from .services import AGAIN, CALM

__all__ = ["FAILURE", "Crew", "decide", "groups"]

TOPICS: Final = ("Shared-0", "Shared-1")
SENT_SO: Final = "key_missing"
"""The code of a problem that says how messages were sent, and nothing of the member."""
LOOK_EVERY: Final = 2.0
"""Seconds between two looks at a member's health, and at the queues."""
REST: Final = 33.0
"""Seconds without faults in which consumption must go on."""
LONGEST_REGISTRATION: Final = 45.0
"""Seconds from the end of all faults to the time when each name server must list all brokers, which register every 30 s."""
FIRST_SENDS: Final = 1.5
"""Mean seconds between two turns of the sender."""
LONGEST_DRAIN: Final = 60.0
"""Seconds in which the rest is handled: after the calm, and after the last time at which a broker listed a member that had left."""
LONGEST_CALL: Final = 40.0
"""Seconds of a handler call at most: after 60 s it counts as stuck."""
FAILURE: Final = "the seed has drawn that this call fails; the library must handle it"
FAREWELL: Final = 6.0
"""Seconds for which the members go on after the wait for the rest of the messages, before they stop."""


async def groups(cluster: Cluster, until: float) -> None:
    """Runs a group of two to ten members: they join, stop and are killed while messages are sent to them."""
    await Crew(cluster, until).run()


class Crew:
    """The operator, the sender and the members. All drawn values are those of one seed."""

    name = "groups"

    def __init__(self, cluster: Cluster, until: float) -> None:
        self.cluster = cluster
        self.until = until
        self.log = cluster.group
        self.chance = chance = cluster.generator(f"workload {self.name}")
        self.topics = TOPICS[: chance.randint(1, 2)]
        share = chance.random()
        self.size = 2 + int(9 * (share * share))  # exact on every platform, unlike a power
        self.without_faults = chance.random() < 0.15
        self.without_kills = chance.random() < 0.4
        self.mean_life = chance.choice((60.0, 200.0, 1000.0))
        self.plain = chance.random() < 0.5
        self.options: dict[str, Any] = {
            "route_poll_interval": 10.0,  # a member with an old route takes part in no handover until its next poll
            "start_from": "earliest",
            "concurrency": chance.choice((4, 16, 64)),
            "handover_timeout": chance.choice((2.0, 10.0)),
            "commit_interval": chance.choice((0.3, 1.0)),
            "max_span": chance.choice((16, 2000)),
            "pull_size": chance.choice((1, 32)),
            "buffered_limit": chance.choice((64, 4096)),
            "retry": Retry(limit=3, delays=(1, 5)),
        }
        self.sends_every = FIRST_SENDS
        self.over = self.resting = False
        self.dead: dict[str, None] = {}
        self.members: dict[str, asyncio.Future[None]] = {}

    async def run(self) -> None:
        cluster, log = self.cluster, self.log
        log.topics, log.commit_interval = self.topics, self.options.get("commit_interval", log.commit_interval)
        log.max_span = self.options.get("max_span", log.max_span)
        if self.without_faults:
            await cluster.calm(0.0)
        await self._create()
        looking = asyncio.ensure_future(self._look())
        work = [self._join(), self.send_messages(), self._rest()]
        if not self.without_kills:
            work.append(self._kill())
        await asyncio.gather(*work)
        await cluster.calm(0.0)
        self._revive()
        await cluster.calm(CALM)
        if self.without_faults:  # it has been calm from the beginning, but the last kill may have been a moment ago
            await asyncio.sleep(CALM)
        log.fine_from = cluster.now
        await self._drained()
        await asyncio.sleep(FAREWELL)
        self.over = True
        await asyncio.gather(*self.members.values())
        await looking
        log.idle = log.look()

    async def _create(self) -> None:
        queues = self.chance.choice((1, 2, 4))
        for topic in self.topics:
            while self.cluster.now < self.until:
                try:
                    async with Admin(namesrv=self.cluster.namesrv) as admin:
                        await admin.create_topic(topic, queues=queues)
                    break
                except RocketMQError:
                    await asyncio.sleep(AGAIN)

    # -- what befalls the group

    async def _join(self) -> None:
        """Starts the machines of the members, some of them later."""
        for number in range(1, self.size + 1):
            if number > 1 and self.chance.random() < 0.5:
                await asyncio.sleep(exponential(self.chance, 10.0))
            name = f"member-{number}"
            self.members[name] = self.cluster.machine(name).run(partial(_live, self, name))

    async def send_messages(self) -> None:
        chance, cluster = self.chance, self.cluster

        async def send(producer: Producer) -> None:
            with suppress(RocketMQError):
                await producer.send(self.message(chance.choice(self.topics), cluster.number()))

        while cluster.now < self.until:
            with suppress(RocketMQError):
                async with Producer("senders", namesrv=cluster.namesrv) as producer:
                    while cluster.now < self.until:
                        count = 50 if chance.random() < 0.02 else chance.randint(1, 3)
                        await asyncio.gather(*(send(producer) for _ in range(count)))
                        await asyncio.sleep(exponential(chance, self.sends_every))
            await asyncio.sleep(AGAIN)

    def message(self, topic: str, number: int) -> Message:
        return Message(topic, b"%d" % number)

    async def _kill(self) -> None:
        """Kills members, and starts them again a while later."""
        chance = self.cluster.generator("kills")
        while self.cluster.now < self.until:
            await asyncio.sleep(max(min(exponential(chance, 30.0), self.until - self.cluster.now), 0.0))
            name = chance.choice(list(self.members))
            machine = self.cluster.machine(name)
            if self.resting or name in self.dead or not machine.running or self.cluster.now >= self.until:
                continue
            self.dead[name] = None
            self.log.client_ids.pop(name, None)
            if chance.random() < 0.2:
                machine.power_loss()
            else:
                machine.crash()
            await asyncio.sleep(exponential(chance, 5.0))
            self._revive()

    def _revive(self) -> None:
        for name in self.dead:
            self.cluster.machine(name).restart()
        self.dead.clear()

    async def _rest(self) -> None:
        """Ends all faults and kills now and then, long enough for the group to continue."""
        cluster = self.cluster
        while True:
            await asyncio.sleep(self.chance.uniform(30.0, 80.0))
            if cluster.now > self.until - REST:
                return
            cluster.rest()
            self.resting = True
            self._revive()
            await self._routed()
            self.look_at_rest()
            await asyncio.sleep(REST)
            self.resting = False
            cluster.go_on()

    async def _routed(self) -> None:
        """Waits until the name servers list all brokers again, for ``LONGEST_REGISTRATION`` seconds at most: no member can find a
        broker that is not listed."""
        end = self.cluster.now + LONGEST_REGISTRATION
        while not self.cluster.routed:
            if self.cluster.now >= end:
                return
            await asyncio.sleep(AGAIN)

    # -- what is seen of it

    async def _look(self) -> None:
        while not self.over:
            self.log.look()
            await asyncio.sleep(LOOK_EVERY)

    def look_at_rest(self) -> None:
        """Records the backlog of the group after ``_routed``, when all faults have ended."""
        self.log.look(resting=True)

    async def _drained(self) -> None:
        """Waits until all messages are handled, for ``LONGEST_DRAIN`` at most. That time begins anew as long as a broker lists a
        member that has left, because the queues of that member wait."""
        end = self.cluster.now + LONGEST_DRAIN
        while self.cluster.now < end:
            backlog = self.log.backlogs[-1]
            if all(low >= high for low, high in backlog.queues.values()) and not self.log.delayed():
                return
            if backlog.ghosts:
                end = self.cluster.now + LONGEST_DRAIN
            await asyncio.sleep(LOOK_EVERY)

    # -- members

    def consumer(self, chance: Random, life: int) -> Consumer:
        consumer = Consumer(GROUP, namesrv=self.cluster.namesrv, **self.options)
        for topic in self.topics:
            timeout = chance.choice((6.0, None))
            if self.plain and topic == self.topics[-1]:
                consumer.subscribe(topic, partial(_handle_at_once, self.log, chance, life))
            else:
                consumer.subscribe(topic, partial(_handle, self.log, chance, life), timeout=timeout)
        return consumer

    def stays(self, name: str, end: float) -> bool:
        """Returns whether a member goes on with its consumer, whose life was drawn to last until ``end``."""
        cluster = self.cluster
        return not self.over and (cluster.now < end or self.resting or cluster.now > self.until)

    async def pause(self, name: str, chance: Random) -> None:
        """Waits between two consumers of a member."""
        if not self.over and not self.resting:
            await asyncio.sleep(exponential(chance, 5.0))

    def working(self, consumer: Consumer, chance: Random, life: int) -> AbstractAsyncContextManager[None]:
        """Returns a context that is entered while a consumer runs."""
        return nullcontext()


async def _live(crew: Crew, name: str) -> None:
    """Runs one consumer after the other in the same process, each a life of the member, until the run is over."""
    cluster, log = crew.cluster, crew.log
    chance = cluster.generator(f"{name} from {cluster.now}")
    while not crew.over:
        life = log.live(name)
        end = cluster.now + exponential(chance, crew.mean_life)
        consumer = crew.consumer(chance, life)
        try:
            async with consumer, crew.working(consumer, chance, life):
                log.joined(name, consumer)
                while crew.stays(name, end):
                    health = consumer.health()
                    named = ((each.code, each.text) for each in health.problems if each.code != SENT_SO)
                    log.sample(life, health.ready, named, consumer.assignment if log.lease is None else ())
                    await asyncio.sleep(LOOK_EVERY)
        except (RocketMQError, TimeoutError):
            await asyncio.sleep(AGAIN)
        log.stopped(life)
        if left := sorted(task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()):
            cluster.violation(f"tasks: a consumer of {name} has stopped, and {', '.join(left)} run")
        await crew.pause(name, chance)


async def _handle(log: GroupLog, chance: Random, life: int, message: MessageExt) -> None:
    delivery = log.begin(message, life)
    try:
        await asyncio.sleep(min(exponential(chance, 8.0 if chance.random() < 0.02 else 0.15), LONGEST_CALL))
    except asyncio.CancelledError:
        log.end(delivery, "cancelled")
        raise
    decide(log, chance, delivery)


def _handle_at_once(log: GroupLog, chance: Random, life: int, message: MessageExt) -> None:
    decide(log, chance, log.begin(message, life))


def decide(log: GroupLog, chance: Random, delivery: Any) -> None:
    drawn = chance.random()
    if drawn < 0.01:
        log.end(delivery, "dead")
        raise DeadLetter(FAILURE)
    if drawn < 0.06:
        log.end(delivery, "failed")
        raise RetryLater(1) if drawn < 0.03 else ValueError(FAILURE)
    log.end(delivery, "done")
