"""Members of a group in this process while a broker or the name servers of a real cluster fail, and after the cure.

``test_group_failures_real`` and ``benchmarks/consumer_runs.py`` share it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from time import monotonic
from typing import Final

import msgspec

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer, PullConsumer, RocketMQError
from rmq_async.errors import BrokerNotFoundError
from rmq_async.testing.cluster import RealCluster

__all__ = ["FAILURES", "Failure", "fails"]

PERSISTED_EVERY: Final = 5.0
"""Seconds: a broker writes offsets to its disk so often, and a killed one loses the newest."""
COMMIT_INTERVAL: Final = 1.0
EVERY: Final = 0.1
"""Seconds between two sends to a queue."""
WITHIN: Final = 30.0
PATIENCE: Final = 90.0


class Failure(msgspec.Struct):
    """What one failure has shown; times in seconds.

    ``lasted``: from its beginning to the cure. ``named``: problem of ``health()`` -> when it was seen first after the beginning.
    ``back``: from the cure until each queue had handled a message that was sent afterwards. ``sound``: from the cure until no
    problem was left; ``left``: those that are. ``others``: the longest time without a message in a queue of another broker.
    ``repeated``: handler calls that returned beyond the first of their message; ``bound``: calls in the queues that failed, from
    one interval of commits and one of the broker's writes before the beginning until the cure. ``behind``: handled messages that
    the committed offsets leave to the next owner.
    """

    what: str
    lasted: float
    named: dict[str, float]
    back: float
    sound: float
    left: list[str]
    others: float
    sent: int
    unconfirmed: int
    lost: int
    repeated: int
    bound: int
    behind: int

    @property
    def kept(self) -> bool:
        return not self.lost and not self.behind and self.repeated <= self.bound and self.back <= WITHIN


Cure = Callable[[], Awaitable[None]]


async def killed(real: RealCluster) -> Cure:
    await real.brokers[0].kill()
    return real.brokers[0].start


async def paused(real: RealCluster) -> Cure:
    broker = real.brokers[0]
    broker.pause()

    async def resume() -> None:
        broker.resume()

    return resume


async def moved(real: RealCluster) -> Cure:
    broker = real.brokers[0]
    former = broker.address
    await broker.kill()

    async def move() -> None:
        await real.move(broker)
        assert broker.address != former

    return move


async def names_paused(real: RealCluster) -> Cure:
    for server in real.nameservers:
        server.pause()

    async def resume() -> None:
        for server in real.nameservers:
            server.resume()

    return resume


async def names_killed(real: RealCluster) -> Cure:
    for server in real.nameservers:
        await server.kill()

    async def start() -> None:
        for server in real.nameservers:
            await server.start()

    return start


FAILURES: Final[dict[str, tuple[Callable[[RealCluster], Awaitable[Cure]], frozenset[str]]]] = {
    "killed": (killed, frozenset({"broker_unreachable", "queue_unreadable", "queue_missing"})),
    "paused": (paused, frozenset({"broker_silent", "queue_unreadable", "not_committed"})),
    "moved": (moved, frozenset({"broker_unreachable", "queue_unreadable", "queue_missing"})),
    "names-paused": (names_paused, frozenset({"no_name_server"})),
    "names-killed": (names_killed, frozenset({"no_name_server"})),
}
"""How it begins, and the problems by which ``health()`` may name it."""


class Watched:
    """Members, what they handled, and what their ``health()`` says. ``handled``: body -> when each of its calls returned."""

    def __init__(self, real: RealCluster, poll: float) -> None:
        self.real = real
        self.poll = poll
        self.name = f"fails-{uuid.uuid4().hex[:12]}"
        self.members: list[Consumer] = []
        self.sent: dict[bytes, tuple[MessageQueue, float]] = {}
        self.unconfirmed = 0
        self.handled: dict[bytes, list[float]] = {}
        self.by_queue: dict[MessageQueue, list[float]] = {}
        self.named: dict[str, float] = {}
        self.problem_at = 0.0
        self.stopping = False

    def member(self, number: int) -> Consumer:
        member = Consumer(
            self.name, namesrv=self.real.namesrv, instance_name=f"{self.name}-{number}", start_from="earliest",
            commit_interval=COMMIT_INTERVAL, route_poll_interval=self.poll,
        )  # fmt: skip
        member.subscribe(self.name, self._handle)
        self.members.append(member)
        return member

    async def _handle(self, message: MessageExt) -> None:
        await asyncio.sleep(0.02)
        now = monotonic()
        self.handled.setdefault(message.body, []).append(now)
        self.by_queue.setdefault(message.queue, []).append(now)

    async def send(self, producer: Producer, queue: MessageQueue) -> None:
        number = 0
        while not self.stopping:
            body = b"%s:%d:%d" % (queue.broker_name.encode(), queue.queue_id, number)
            number += 1
            try:
                await producer.send(Message(self.name, body), queue=queue, timeout=1.0)
            except RocketMQError:
                self.unconfirmed += 1
            else:
                self.sent[body] = (queue, monotonic())
            await asyncio.sleep(EVERY)

    async def watch(self) -> None:
        while not self.stopping:
            now = monotonic()
            for member in self.members:
                for problem in member.health().problems:
                    self.named.setdefault(problem.code, now)
                    self.problem_at = now
            await asyncio.sleep(0.05)

    def back(self, queue: MessageQueue, since: float) -> float | None:
        """When a message that was sent to the queue at ``since`` or later was handled first; None: not yet."""
        found = [
            self.handled[body][-1]
            for body, (where, at) in self.sent.items()
            if where == queue and at >= since and body in self.handled
        ]
        return min(found, default=None)

    async def behind(self, queues: list[MessageQueue]) -> int:
        """Asks until the name servers list all brokers again: one that was paused drops a broker whose connection has
        ended, and the broker registers again within 30 s."""
        deadline = monotonic() + PATIENCE
        async with PullConsumer(self.name, namesrv=self.real.namesrv) as reader:
            while True:
                try:
                    return sum([await reader.max_offset(queue) - (await reader.committed(queue) or 0) for queue in queues])
                except BrokerNotFoundError:
                    if monotonic() > deadline:
                        raise
                await asyncio.sleep(0.2)


async def _until(condition: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = monotonic() + timeout
    while not condition() and monotonic() < deadline:
        await asyncio.sleep(0.05)


async def fails(real: RealCluster, what: str, seconds: float, *, poll: float = 30.0) -> Failure:
    """Two members read two queues of each of two brokers; the first broker, or all name servers, fail for ``seconds``.

    ``poll``: the members' ``route_poll_interval``, after which they notice that no name server answers.
    """
    begin, _ = FAILURES[what]
    watched = Watched(real, poll)
    first = real.brokers[0].name
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(namesrv=real.namesrv))
        await admin.create_topic(watched.name, queues=2)
        producer = await stack.enter_async_context(Producer(f"sender-{watched.name}", namesrv=real.namesrv, retries=0))
        queues = sorted(await producer.fetch_publish_queues(watched.name))
        for number in range(2):
            await stack.enter_async_context(watched.member(number))
        sending = [asyncio.create_task(watched.send(producer, queue)) for queue in queues]
        await _until(lambda: len(watched.by_queue) == len(queues))
        await asyncio.sleep(1.0)
        watching = asyncio.create_task(watched.watch())
        began = monotonic()
        cure = await begin(real)
        await asyncio.sleep(seconds)
        await cure()
        cured = monotonic()
        touched = [queue for queue in queues if queue.broker_name == first or what.startswith("names")]
        await _until(lambda: None not in [watched.back(queue, cured) for queue in touched])
        await _until(lambda: monotonic() - max(watched.problem_at, cured) > 1.0)
        left = [problem.text for member in watched.members for problem in member.health().problems]
        watched.stopping = True
        await asyncio.gather(*sending, watching)
        await _until(lambda: watched.sent.keys() <= watched.handled.keys())
    return Failure(
        what=what,
        lasted=round(cured - began, 2),
        named={code: round(at - began, 2) for code, at in watched.named.items()},
        back=round(max((watched.back(queue, cured) or cured + PATIENCE) - cured for queue in touched), 2),
        sound=round(max(watched.problem_at - cured, 0.0), 2),
        left=left,
        others=round(max((_longest_gap(watched.by_queue[queue]) for queue in queues if queue not in touched), default=0.0), 2),
        sent=len(watched.sent),
        unconfirmed=watched.unconfirmed,
        lost=len(watched.sent.keys() - watched.handled.keys()),
        repeated=sum(len(ends) - 1 for ends in watched.handled.values()),
        bound=sum(
            began - COMMIT_INTERVAL - PERSISTED_EVERY <= at <= cured for queue in touched for at in watched.by_queue[queue]
        ),
        behind=await watched.behind(queues),
    )


def _longest_gap(ends: list[float]) -> float:
    return max((later - earlier for earlier, later in pairwise(ends)), default=0.0)
