"""Group consumers of tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from rmq_async import Admin, Consumer, Message, MessageExt, MessageQueue, Producer
from rmq_async.testing.simulation import Machine, Simulation
from rmq_async.testing.simulation.servers import BrokerMachine

from ...support.waiting import limit

__all__ = ["Seen", "create", "member", "reader", "send", "send_until", "serving", "taken", "until"]


class Seen:
    """A handler that counts bodies. ``work``: awaited before a message counts as handled."""

    def __init__(self, work: Callable[[MessageExt], Any] | None = None) -> None:
        self.bodies: Counter[bytes] = Counter()
        self.attempts: list[tuple[bytes, int]] = []
        self.work = work

    async def __call__(self, message: MessageExt) -> None:
        self.attempts.append((message.body, message.reconsume_times + 1))
        if self.work is not None:
            await self.work(message)
        self.bodies[message.body] += 1

    @property
    def twice(self) -> int:
        return sum(count > 1 for count in self.bodies.values())


async def create(namesrv: str, topic: str = "T", queues: int = 4) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(topic, queues=queues)


async def send(namesrv: str, *bodies: bytes, topic: str = "T", tags: str | None = None) -> None:
    async with Producer("senders", namesrv=namesrv) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, tags=tags))


async def until(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Waits until ``condition()`` holds. Raises TimeoutError after the ``limit``."""
    async with asyncio.timeout(limit(timeout)):
        while not condition():
            await asyncio.sleep(0.01)


def member(group: str, namesrv: str, name: str, handler: Callable[[MessageExt], Any], **options: Any) -> Consumer:
    """Returns a consumer that is another member than those with another ``name``."""
    consumer = Consumer(group, namesrv=namesrv, instance_name=name, **options)
    consumer.subscribe("T", handler)
    return consumer


def reader(namesrv: str, name: str = "one", **options: Any) -> Consumer:
    """Returns a member that is read by hand."""
    return Consumer("g", namesrv=namesrv, instance_name=name, topics="T", **options)


async def taken(consumer: Consumer, count: int) -> list[bytes]:
    """Returns the bodies of the next messages, all of them settled."""
    bodies: list[bytes] = []
    if count:
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == count:
                assert consumer.done(message)
                break
    return bodies


def serving(s: Simulation, name: str, handler: Callable[[MessageExt], Any], *, machine: str = "service") -> Machine:
    """Starts a member on a machine of its own, where it serves until the machine crashes."""

    async def serve() -> None:
        async with member("g", s.namesrv, name, handler):
            await asyncio.Event().wait()

    found = s.machine(machine)
    found.run(serve)
    return found


async def send_until(s: Simulation, end: float, every: float) -> int:
    """Sends a message each ``every`` seconds until the simulation's time is ``end``; returns their number."""
    sent = 0
    async with Producer("p", namesrv=s.namesrv) as producer:
        while s.now < end:
            await producer.send(Message("T", b"%d" % sent))
            sent += 1
            await asyncio.sleep(every)
    return sent


def committed_at(broker: BrokerMachine, group: str, queue: MessageQueue) -> int:
    """Returns the offset that the running process of a broker keeps for a group, 0 for none."""
    return max(broker.broker.state.offsets.find(group, queue.topic, queue.queue_id), 0)


def is_locked_at(broker: BrokerMachine, group: str, queue: MessageQueue) -> bool:
    """Returns whether a client has the lock of a group's queue, by the broker's clock."""
    return broker.broker.state.locks.holding(group, queue, broker.monotonic()) is not None
