"""What is left after ``stop()`` on a real broker: every message acknowledged, and no task, no socket, no entry, no warning."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import subprocess
import sys
import uuid
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any

import psutil
import pytest

from rmq_async import Admin, ClientStateError, Message, Producer, RocketMQError, SendResult, run
from rmq_async.client.instance import ClientInstance
from rmq_async.producer.core import ProducerCore
from rmq_async.testing.cluster import RealCluster
from rmq_async.transport import Connection

from ..producer.support import core_of
from ..support.instances import client_of, registered
from .accounting import judge, read_all

Runner = Callable[[Coroutine[Any, Any, None]], None]

on_both_loops = pytest.mark.parametrize("runner", [run, asyncio.run], ids=["uvloop", "asyncio"])


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("RMQ_SEED") or random.randrange(1 << 32))
    print(f"RMQ_SEED={seed}")
    return random.Random(seed)


class Remains:
    """Made while a producer runs; ``check`` after its stop."""

    def __init__(self, client: ClientInstance, sender: ProducerCore) -> None:
        self.config = client.config
        self.sender = sender
        self.connections: tuple[Connection, ...] = client.pool.connections
        assert self.connections

    @classmethod
    async def of(cls, producer: Producer) -> Remains:
        return cls(await client_of(producer), core_of(producer))

    def check(self) -> None:
        assert asyncio.all_tasks() == {asyncio.current_task()}
        ports = {int(connection.address.rpartition(":")[2]) for connection in self.connections}
        assert not [s for s in psutil.Process().net_connections(kind="tcp") if s.raddr and s.raddr.port in ports and s.fd >= 0]
        for connection in self.connections:
            assert connection.closed.done()
            assert (connection.pending, connection.buffered_bytes) == (0, 0)
        for credit in (self.sender.credits, self.sender.oneway_credits):
            assert (credit.taken, credit.taken_bytes, credit.waiting) == (0, 0, 0)
        assert not self.sender.dispatch.calls
        assert not [key for key in registered() if key[2] == self.config]
        gc.collect()  # what should have been closed and was not warns now


async def new_topic(cluster: RealCluster) -> str:
    topic = f"stop-{uuid.uuid4().hex[:12]}"
    async with Admin(namesrv=cluster.namesrv, request_timeout=30.0) as admin:
        await admin.create_topic(topic)
    return topic


@on_both_loops
def test_1000_sends_cancelled_at_random_moments_leave_nothing(
    cluster: RealCluster, chance: random.Random, runner: Runner
) -> None:
    async def main() -> None:
        topic = await new_topic(cluster)
        acknowledged: list[str] = []
        names = [str(number) for number in range(1000)]
        async with Producer("stop", namesrv=cluster.namesrv, async_limit=200) as producer:
            await producer.send(Message(topic, b"warm"))
            remains = await Remains.of(producer)

            async def one(name: str) -> None:
                message = Message(topic, name.encode() + b" " * chance.choice([0, 0, 0, 5000, 70_000]))
                way = chance.randrange(5)
                if way == 0:
                    await (await producer.send_async(message))
                elif way == 1:
                    await producer.send_batch([message])
                elif way == 2:
                    await producer.send(message, key="the same for all of these")
                elif way == 3:
                    await producer.send_oneway(message)
                    return
                else:
                    await producer.send(message)
                acknowledged.append(name)

            calls: list[asyncio.Future[None]] = []
            for name in names:
                calls.append(asyncio.ensure_future(one(name)))
                asyncio.get_running_loop().call_later(10 ** chance.uniform(-4, -0.5), calls[-1].cancel)
                if chance.random() < 0.1:
                    await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            cancelled = sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
            assert remains.sender.credits.taken == 0
            await producer.send(Message(topic, b"after"))
        remains.check()
        read = [message.body.decode().rstrip() for message in await read_all(cluster.namesrv, topic)]
        verdict = judge(["warm", "after", *names], ["warm", "after", *acknowledged], read)
        print(f"{cancelled} of 1000 sends were cancelled: {verdict}")
        assert cancelled > 50 < verdict.acknowledged
        assert (verdict.lost, verdict.strange, verdict.duplicated) == ((), (), 0)

    runner(main())


@on_both_loops
def test_a_stop_without_patience_ends_every_send_under_way(two_brokers: RealCluster, runner: Runner) -> None:
    async def main() -> None:
        topic = await new_topic(two_brokers)
        ends: dict[str, list[object]] = {}
        producer = Producer("stop", namesrv=two_brokers.namesrv)
        await producer.start()
        await producer.send(Message(topic, b"warm"))
        remains = await Remains.of(producer)

        async def begin(numbers: range) -> None:
            for number in numbers:
                end = ends.setdefault(str(number), [])
                message = Message(topic, b"%d" % number)
                await producer.send_async(message, on_success=end.append, on_error=end.append)

        await begin(range(1000))
        while not ends["0"]:
            await asyncio.sleep(0)
        try:
            for broker in two_brokers.brokers:
                broker.pause()  # quick ones would answer all the others too, before the stop has looked
            await begin(range(1000, 2000))
            awaited = [asyncio.ensure_future(producer.send(Message(topic, b"awaited"))) for _ in range(100)]
            await asyncio.sleep(0)
            began = monotonic()
            await producer.stop(timeout=0)
            print(f"stopped with 1100 sends under way, or more, after {monotonic() - began:.3f} s")
        finally:
            for broker in two_brokers.brokers:
                broker.resume()
        assert {len(end) for end in ends.values()} == {1}
        outcomes = await asyncio.gather(*awaited, return_exceptions=True)
        for outcome in (*outcomes, *[end[0] for end in ends.values()]):
            assert isinstance(outcome, SendResult | ClientStateError)
        known = {number for number, end in ends.items() if isinstance(end[0], ClientStateError) and not end[0].maybe_stored}
        assert 0 < len(known) < len(ends) - 100  # sends that waited for the window were not written; the others may be stored
        assert not known & {message.body.decode() for message in await read_all(two_brokers.namesrv, topic)}
        remains.check()
        with pytest.raises(ClientStateError):
            await producer.send(Message(topic, b"too late"))
        acknowledged = [name for name, (end,) in ends.items() if isinstance(end, SendResult)]
        read = [message.body.decode() for message in await read_all(two_brokers.namesrv, topic)]
        verdict = judge([*ends, "warm", "awaited"], acknowledged, [name for name in read if name not in ("warm", "awaited")])
        print(verdict)
        assert 0 < verdict.acknowledged <= 1000
        assert (verdict.lost, verdict.strange, verdict.duplicated) == ((), (), 0)

    runner(main())


@on_both_loops
def test_a_patient_stop_lets_every_send_finish(cluster: RealCluster, runner: Runner) -> None:
    async def main() -> None:
        topic = await new_topic(cluster)
        producer = Producer("stop", namesrv=cluster.namesrv)
        await producer.start()
        await producer.send(Message(topic, b"warm"))
        remains = await Remains.of(producer)
        futures = [await producer.send_async(Message(topic, b"%d" % number)) for number in range(1000)]
        for _ in range(100):
            await producer.send_oneway(Message(topic, b"one-way"))
        await producer.stop()
        assert all(isinstance(future.result(), SendResult) for future in futures)
        remains.check()
        assert len(await read_all(cluster.namesrv, topic)) == 1101

    runner(main())


@on_both_loops
def test_a_cancelled_stop_leaves_nothing_either(cluster: RealCluster, chance: random.Random, runner: Runner) -> None:
    async def main() -> None:
        topic = await new_topic(cluster)
        for _ in range(8):
            producer = Producer("stop", namesrv=cluster.namesrv)
            await producer.start()
            await producer.send(Message(topic, b"warm"))
            remains = await Remains.of(producer)
            futures = [await producer.send_async(Message(topic, b"x")) for _ in range(200)]
            stopping = asyncio.ensure_future(producer.stop())
            await asyncio.sleep(0)  # one that is cancelled before it began has done nothing, and the producer runs on
            asyncio.get_running_loop().call_later(chance.uniform(0, 0.02), stopping.cancel)
            await asyncio.gather(stopping, return_exceptions=True)
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(outcome, SendResult | RocketMQError) for outcome in outcomes)
            remains.check()

    runner(main())


PROGRAM = """
import asyncio, gc, sys
from rmq_async import Message, Producer, PullConsumer, run

async def main(namesrv, topic):
    async with Producer("stop", namesrv=namesrv) as producer, PullConsumer("stop", namesrv=namesrv) as consumer:
        calls = [asyncio.ensure_future(producer.send(Message(topic, b"x"))) for _ in range(500)]
        await producer.send(Message(topic, b"y"))
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        async for message in consumer.read(topic):
            break
    assert asyncio.all_tasks() == {asyncio.current_task()}, asyncio.all_tasks()

for runner in (run, asyncio.run):
    runner(main(*sys.argv[1:]))
    gc.collect()
"""


def test_a_program_that_stops_its_clients_warns_of_nothing(cluster: RealCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "tracemalloc", "-c", PROGRAM, cluster.namesrv, run(new_topic(cluster))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
