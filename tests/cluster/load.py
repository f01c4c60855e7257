"""A steady load on real brokers, what became of each of its messages, and what has to be waited for before that is judged."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple

from rmq_async import Admin, Message, Producer, RocketMQError
from rmq_async.testing.cluster import RealCluster, Server
from rmq_async.transport import CloseReason, Connection, ConnectionPool

from ..support.instances import client_of
from ..support.lateness import Lateness
from .accounting import read_all, stored_count
from .history import Copy, History, copies, verdict

RATE = 200
"""Messages a second."""


class Ended(NamedTuple):
    """One call that ended, after ``seconds``. ``broker``: where its message was stored; None when it failed."""

    at: float
    seconds: float
    attempts: int
    broker: str | None


class Load:
    """Sends ``rate`` messages a second until ``stop``, however long each takes, and writes down what becomes of them."""

    def __init__(self, producer: Producer, topic: str, rate: int = RATE) -> None:
        self.topic = topic
        self.rate = rate
        self.history = History()
        self.ended: list[Ended] = []
        self.producer = producer
        self.lateness = Lateness()
        self.stopping = False
        self.task = asyncio.ensure_future(self.run())

    async def stop(self) -> None:
        self.stopping = True
        await self.task

    def between(self, start: float, end: float) -> list[Ended]:
        return [each for each in self.ended if start <= each.at < end]

    def first_success_since(self, when: float) -> float | None:
        return next((each.at for each in self.ended if each.at >= when and each.broker is not None), None)

    def own(self, call: Ended) -> float:
        """Returns the seconds of the call without those for which the loop was late: a busy machine took them."""
        return self.lateness.own(call.at - call.seconds, call.at)

    async def run(self) -> None:
        start, made, calls = monotonic(), 0, set[asyncio.Task[None]]()
        async with self.lateness:
            while not self.stopping:
                while made < (monotonic() - start) * self.rate:
                    call = asyncio.ensure_future(self.send(str(made)))
                    calls.add(call)
                    call.add_done_callback(calls.discard)
                    made += 1
                await asyncio.sleep(0.002)
            await asyncio.gather(*calls)

    async def send(self, name: str) -> None:
        began = monotonic()
        try:
            result = await self.producer.send(Message(self.topic, name.encode()))
        except RocketMQError as error:
            now = monotonic()
            self.history.gave_up(name, error, now - began)
            self.ended.append(Ended(now, now - began, self.history.requests[name], None))
        else:
            now = monotonic()
            self.history.succeeded(name, result, now - began)
            self.ended.append(Ended(now, now - began, result.attempts, result.queue.broker_name))


class Watch:
    """The connections the producer has at this moment, to see later which of them were lost."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.pool = pool
        self.connections: tuple[Connection, ...] = pool.connections

    @classmethod
    async def of(cls, producer: Producer) -> Watch:
        return cls((await client_of(producer)).pool)

    @property
    def lost(self) -> int:
        return sum(connection.close_reason not in (None, CloseReason.LOCAL) for connection in self.connections)


async def new_topic(cluster: RealCluster, broker: str | None = None) -> str:
    topic = f"failover-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic, queues=4, broker=broker)
    return topic


@asynccontextmanager
async def loaded(cluster: RealCluster, *, broker: str | None = None, **options: Any) -> AsyncIterator[tuple[Load, Producer]]:
    """A topic on all brokers, or on one, and a load on it that has run for half a second. ``options``: of the producer."""
    topic = await new_topic(cluster, broker)
    async with Producer("failover", namesrv=cluster.namesrv, route_poll_interval=1.0, **options) as producer:
        load = Load(producer, topic)
        try:
            await asyncio.sleep(0.5)
            yield load, producer
        finally:
            await load.stop()


async def settled(namesrv: str, topic: str) -> list[Copy]:
    """All that is in the topic, once its offsets stand still: a broker that recovers goes on indexing for a moment."""
    before, count = -1, await stored_count(namesrv, topic)
    async with asyncio.timeout(120):
        while count != before:
            await asyncio.sleep(0.3)
            before, count = count, await stored_count(namesrv, topic)
    return copies(await read_all(namesrv, topic))


async def until_used(producer: Producer, broker: Server) -> None:
    """Until the producer is connected to the broker again, which its next look at the route leads to."""
    pool, start = (await client_of(producer)).pool, monotonic()
    while pool.get(broker.address) is None:
        assert monotonic() - start < 10.0, f"{broker.name} is not used again"
        await asyncio.sleep(0.02)


def print_counts(what: str, history: History, read: list[Copy], lost_connections: int) -> None:
    print(
        f"{what}: {verdict(history, read)}; {history.retried} retried, {len(history.failed)} failed, {lost_connections} "
        f"connections lost, slowest send {history.slowest:.3f} s"
    )
