"""The only broker of a real cluster, restarted under load again and again: with the time there is, no send fails for it.

Some calls name their queue or a key. Of these one may fail, and only so that it says that the message may be stored, or with
what the broker answered. RMQ_RESTARTS is the number of restarts of each kind, RMQ_RATE that of sends a second; in the suite
there is one SIGTERM and one SIGKILL.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from rmq_async import Admin, Message, MessageQueue, Producer, RocketMQError, SendResult, run
from rmq_async.errors import BrokerError
from rmq_async.testing.cluster import RealCluster, Server, require

from .conftest import NO_TIMERS
from .history import History, faults
from .load import print_counts, settled

TIMEOUT: Final = 60.0
RESTARTS: Final = int(os.environ.get("RMQ_RESTARTS") or 1)
RATE: Final = int(os.environ.get("RMQ_RATE") or 100)
QUEUES: Final = 4


class Sends:
    """``rate`` calls a second, every third with a choice of its queue, one after the other in all their ways."""

    def __init__(self, topic: str, broker: str, plain: Producer, gathering: Producer) -> None:
        self.plain, self.chosen = History(), History()
        self.topic = topic
        self.broker = broker
        self.producers = (plain, gathering)
        self.calls: set[asyncio.Task[None]] = set()
        self.number = 0
        self.stopping = False
        self.task = asyncio.create_task(self.run())

    async def stop(self) -> None:
        self.stopping = True
        await self.task
        await asyncio.gather(*self.calls)

    @property
    def under_way(self) -> int:
        return len(self.calls)

    async def run(self) -> None:
        began = monotonic()
        while not self.stopping:
            while self.number < (monotonic() - began) * RATE:
                call = asyncio.create_task(self.one(self.number))
                self.calls.add(call)
                call.add_done_callback(self.calls.discard)
                self.number += 1
            await asyncio.sleep(0.005)

    async def one(self, number: int) -> None:
        name, began = str(number), monotonic()
        chosen = number % 3 == 0
        history = self.chosen if chosen else self.plain
        try:
            result = await self.way(number, chosen)(Message(self.topic, name.encode()))
        except RocketMQError as error:
            history.gave_up(name, error, monotonic() - began)
        else:
            history.succeeded(name, result, monotonic() - began)

    def way(self, number: int, chosen: bool) -> Callable[[Message], Awaitable[SendResult]]:
        producer = self.producers[number % 2]
        if chosen and number % 4 == 0:
            return lambda message: producer.send(message, queue=MessageQueue(self.topic, self.broker, number % QUEUES))
        if chosen:
            return lambda message: producer.send(message, key=str(number % 50))

        async def deferred(message: Message) -> SendResult:
            return await (await producer.send_async(message))

        async def batched(message: Message) -> SendResult:
            return (await producer.send_batch([message])).results[0]

        return (producer.send, producer.send, deferred, batched)[number // 3 % 4]


async def restarted(broker: Server, how: signal.Signals) -> float:
    """Ends the broker and starts it again; returns the seconds until its port was open."""
    began = monotonic()
    if how is signal.SIGTERM:
        await broker.stop()
    else:
        await broker.kill()
    broker.spawn()
    await broker.wait_port(monotonic() + 60.0)
    return monotonic() - began


def test_restarts_of_the_only_broker_fail_no_send() -> None:
    require()
    seed = int(os.environ.get("RMQ_SEED") or random.randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    chance = random.Random(seed)

    async def main() -> None:
        async with RealCluster(profile="stock", broker_conf=NO_TIMERS) as cluster:
            (broker,) = cluster.brokers
            topic = f"restarts-{uuid.uuid4().hex[:12]}"
            async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
                await admin.create_topic(topic, queues=QUEUES)
            async with (
                Producer("plain", namesrv=cluster.namesrv, timeout=TIMEOUT) as plain,
                Producer("gathering", namesrv=cluster.namesrv, timeout=TIMEOUT, batching=True) as gathering,
            ):
                sends, away = Sends(topic, broker.name, plain, gathering), list[float]()
                try:
                    for _ in range(RESTARTS):
                        for how in (signal.SIGTERM, signal.SIGKILL):
                            await asyncio.sleep(chance.uniform(1.0, 3.0))
                            away.append(await restarted(broker, how))
                            waiting, opened = sends.under_way, monotonic()
                            while sends.under_way > max(RATE / 2, waiting / 100) and monotonic() < opened + TIMEOUT:
                                await asyncio.sleep(0.01)
                            print(
                                f"{how.name}: away for {away[-1]:.1f} s; {waiting} calls went within {monotonic() - opened:.2f} s"
                            )
                finally:
                    await sends.stop()
            assert max(away) <= TIMEOUT - 3.0, "the machine is too slow for this test"
            await cluster.heal()
            read = await settled(cluster.namesrv, topic)
        for name, history in (("plain", sends.plain), ("with a choice", sends.chosen)):
            mine = [copy for copy in read if copy.name in history.requests]
            print_counts(name, history, mine, 0)
            print(Counter(f"{type(error).__name__}: {error}"[:200] for error in history.failed.values()).most_common(8))
            assert faults(history, mine, may_lose=True) == []
        assert sends.plain.failed == {}
        for error in sends.chosen.failed.values():
            answered = isinstance(error, BrokerError) or isinstance(error.__cause__, BrokerError)
            assert answered or getattr(error, "maybe_stored", False), error
        assert sends.plain.retried > RATE

    run(main())
