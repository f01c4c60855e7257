"""Services that make it hard for the library: they cancel calls, stop clients during calls, delete messages that are being read,
and cause faults of brokers, so that they know which calls may fail."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from rmq_async.admin import Admin
from rmq_async.consumer import PullConsumer
from rmq_async.errors import OffsetRangeError, RocketMQError
from rmq_async.producer import Batching, Producer
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import Message, MessageQueue

from ..cluster import Cluster
from .services import KEYS, every, keeps_sending, keeps_taking, new_body, reaches, serve, turns

__all__ = ["beside", "cancelled", "closing", "cold", "deleting", "stopping"]

UNCOMPRESSED: Final = 1 << 22
"""Size in bytes below which the bodies of these services are sent as they are: compressed sizes differ between versions of zlib."""
LARGE: Final = 120_000
"""Bytes of a body that fills the buffers of a kernel whose peer does not read."""
CROWD: Final = 25_000
"""Calls that wait for brokers which do not answer, in a few seeds."""
SPACING: Final = 0.0003
"""Mean seconds between two calls of a stream."""
TURNS: Final = (0.0, 0.0002, 0.0006, 0.002)
"""Seconds of a turn of an event loop, at most."""
SHORTEST: Final = 3.0
"""Seconds within which a call must succeed although one of two brokers fails: the producer's default timeout."""


async def cancelled(cluster: Cluster, until: float) -> None:
    """Cancels calls of several kinds at any moment, with few credits and a window of four; other calls must not be affected."""
    chance = cluster.generator("workload cancelled")

    async def asynchronous(producer: Producer, message: Message) -> None:
        await (await producer.send_async(message))

    def call(producer: Producer) -> Any:
        size = LARGE if chance.random() < 0.05 else chance.choice((0, 10, 3000))
        message = Message("Cancelled", f"{cluster.number()}-".encode() + b"x" * size)
        kind, key = chance.randrange(6), chance.choice(KEYS)
        if kind == 0:
            return producer.send(message, key=key)
        if kind == 1:
            return producer.send_oneway(message, key=key)
        if kind == 2:
            return asynchronous(producer, message)
        if kind == 3:
            return producer.send_batch([message])
        return producer.send(message, timeout=chance.choice((None, 0.05, 1.0)))

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            tasks = [asyncio.ensure_future(call(producer)) for _ in range(chance.randint(1, 24))]
            for task in tasks:
                if chance.random() < 0.3:
                    asyncio.get_running_loop().call_later(
                        chance.choice((0.0, 0.001, 0.003, 0.02, 0.3)) * chance.random(), task.cancel
                    )
            await asyncio.gather(*tasks, return_exceptions=True)

    async def afterwards(producer: Producer) -> None:
        await reaches(cluster, "Cancelled")(producer)
        await keeps_taking("Cancelled", KEYS)(producer)
        for number in range(len(KEYS)):
            await producer.send_oneway(Message("Cancelled", f"last-{number}".encode()), key=KEYS[number])

    make = partial(
        Producer, "cancelled", namesrv=cluster.namesrv, async_limit=12, oneway_limit=12, broker_window=4,
        compress_over=UNCOMPRESSED, batching=chance.random() < 0.5,
    )  # fmt: skip
    await serve(cluster, until, make, work, afterwards)


async def stopping(cluster: Cluster, until: float) -> None:
    """Stops producers while calls are under way; each call must have an end soon after ``stop`` returns."""
    chance = cluster.generator("workload stopping")

    async def accepted(producer: Producer, message: Message) -> None:
        await (await producer.send_async(message))

    def call(producer: Producer) -> Any:
        message = Message("Stopping", new_body(chance, cluster.number()))
        kind, key = chance.randrange(6), chance.choice(KEYS)
        if kind == 0:
            return producer.send(message, key=key)
        if kind == 1:
            return producer.send_oneway(message, key=chance.choice((None, key)))
        if kind == 2:
            return accepted(producer, message)
        if kind == 3:
            return producer.request(message, timeout=4.0)
        return producer.send(message)

    async def live(number: int) -> None:
        options: dict[str, Any] = {"stop_timeout": chance.choice((0.0, 0.05, 1.0)), "broker_window": chance.choice((2, 8192))}
        if chance.random() < 0.5:
            options["batching"] = Batching(linger=chance.choice((0.0, 0.02)))
        producer = Producer(f"stopping-{number}", namesrv=cluster.namesrv, **options)
        await producer.start()
        tasks = []
        try:
            for _ in range(chance.randint(1, 3)):
                tasks += [asyncio.ensure_future(call(producer)) for _ in range(chance.randint(1, 20))]
                await asyncio.sleep(chance.choice((0.0, 0.002, 0.01, 0.3)) * chance.random())
        finally:
            await producer.stop()
        await asyncio.sleep(0.01)
        if left := [task for task in tasks if not task.done()]:
            cluster.violation(f"unended: {len(left)} calls of a producer have no end after its stop")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async for number in turns(cluster, chance, until):
        with suppress(RocketMQError):
            await live(number)


async def beside(cluster: Cluster, until: float) -> None:
    """Sends while one of two brokers fails again and again; no send fails, since the other one is healthy."""
    chance = cluster.generator("workload beside")
    victim = chance.choice(("broker-a", "broker-b"))

    async def send(producer: Producer, timeout: float) -> None:
        try:
            await producer.send(Message("Beside", new_body(chance, cluster.number())), timeout=timeout)
        except RocketMQError as error:
            cluster.violation(f"failed: a send with {timeout} s failed, and one broker was healthy: {error!r}")

    async def work(producer: Producer) -> None:
        while cluster.now < until:
            patient = chance.random() < 0.2
            count = chance.choice((1, 3, 40))
            await asyncio.gather(
                *(send(producer, 20.0 if patient and chance.random() < 0.2 else SHORTEST) for _ in range(count))
            )
            await asyncio.sleep(chance.choice((0.01, 0.3, 3.0)) * chance.random())

    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic("Beside", queues=4)
    await asyncio.sleep(1.0)
    trouble = asyncio.ensure_future(_disturb(cluster, chance, victim, until))
    await asyncio.gather(
        serve(cluster, until, partial(Producer, "beside", namesrv=cluster.namesrv), work, reaches(cluster, "Beside")),
        serve(cluster, until, partial(Producer, "beside-2", namesrv=cluster.namesrv, batching=True), work),
    )
    await trouble


async def _disturb(cluster: Cluster, chance: Random, victim: str, until: float) -> None:
    machine, link = cluster.machine(victim), cluster.link("beside", victim)
    while cluster.now < until - 40.0:
        await asyncio.sleep(chance.uniform(1.0, 40.0))
        kind = chance.randrange(5)
        if kind == 0:
            machine.pause()
        elif kind == 1:
            machine.crash()
        elif kind == 2:
            link.cut()
        elif kind == 3:
            link.cut(one_way=victim)
        else:
            link.drop()
            link.hang()
        await asyncio.sleep(chance.choice((0.5, 5.0, 30.0)) * chance.random())
        if kind == 0:
            machine.resume()
        elif kind == 1:
            machine.restart()
        elif kind == 4:
            link.hang(False)
        else:
            link.heal()


async def cold(cluster: Cluster, until: float) -> None:
    """Makes many first sends at once, to brokers that may be unreachable; those that give up must not delay the others."""
    chance = cluster.generator("workload cold")
    links = [cluster.link("cold", name) for name in ("broker-a", "broker-b")]

    async def burst(count: int) -> None:
        batching = chance.random() < 0.5
        async with Producer("cold", namesrv=cluster.namesrv, async_limit=CROWD, batching=batching) as producer:
            calls = [producer.send(Message("Cold", b"%d" % cluster.number()), timeout=4.0) for _ in range(count)]
            await asyncio.gather(*calls, return_exceptions=True)

    async for _ in turns(cluster, chance, until):
        crowd = chance.random() < 0.003
        for link in links if crowd else ():
            link.hang()
        with suppress(RocketMQError):
            await burst(CROWD if crowd else chance.choice((10, 100, 600)))
        for link in links if crowd else ():
            link.hang(False)
        await asyncio.sleep(10.0)


async def closing(cluster: Cluster, until: float) -> None:
    """Makes streams of calls from a loop that may be slow, to brokers that may close the connections which they accept."""
    chance = cluster.generator("workload closing")
    machine, links = cluster.machine("closing"), [cluster.link("closing", name) for name in ("broker-a", "broker-b")]

    async def stream(producer: Producer) -> None:
        calls = []
        for _ in range(chance.choice((10, 40, 160))):
            message = Message("Closing", b"%d" % cluster.number())
            calls.append(asyncio.ensure_future(producer.send(message, timeout=chance.choice((0.2, 1.0, 3.0)))))
            await asyncio.sleep(exponential(chance, SPACING))
        await every(calls)

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            closing = [link for link in links if chance.random() < 0.5]
            for link in closing:
                link.drop()
                link.close_early()
            machine.slow(chance.choice(TURNS))
            try:
                await stream(producer)
            finally:
                machine.slow(0.0)
                for link in closing:
                    link.close_early(False)

    make = partial(Producer, "closing", namesrv=cluster.namesrv)
    await serve(cluster, until, make, work, reaches(cluster, "Closing"))


async def deleting(cluster: Cluster, until: float) -> None:
    """Deletes the oldest messages of a topic while they are read; the reader must raise an error for each gap."""
    chance = cluster.generator("workload deleting")

    async def write(producer: Producer) -> None:
        await keeps_sending(cluster, chance, until, "Deleting", producer.send)

    async def operate() -> None:
        while cluster.now < until:
            await asyncio.sleep(chance.uniform(1.0, 60.0))
            cluster.expire("Deleting", chance)

    async def read(consumer: PullConsumer) -> None:
        queues = await consumer.queues("Deleting")
        ends = {queue: await consumer.min_offset(queue) for queue in queues}
        try:
            async with asyncio.timeout(min(60.0, until - cluster.now)):
                async for message in consumer.read("Deleting", start=dict(ends), end=None):
                    _step(cluster, ends, message.queue, message.queue_offset)
                    if chance.random() < 0.05:
                        await asyncio.sleep(chance.random() * 5.0)
        except OffsetRangeError:
            await asyncio.sleep(1.0)

    await asyncio.gather(
        serve(cluster, until, partial(Producer, "deleting", namesrv=cluster.namesrv), write),
        serve(
            cluster, until, partial(PullConsumer, "deleting", namesrv=cluster.namesrv), partial(_again, cluster, until, read)
        ),
        operate(),
    )


async def _again(cluster: Cluster, until: float, read: Any, consumer: PullConsumer) -> None:
    while cluster.now < until:
        try:
            await read(consumer)
        except (RocketMQError, TimeoutError):
            await asyncio.sleep(1.0)


def _step(cluster: Cluster, ends: dict[MessageQueue, int], queue: MessageQueue, offset: int) -> None:
    """Compares the offset of a message with that of the message before it, which it must follow. Queues that were added later may
    begin at any offset."""
    if queue not in ends:
        return
    if offset > ends[queue]:
        cluster.violation(f"gap: the reader got offset {offset} of {queue} where {ends[queue]} comes next, and no error")
    ends[queue] = offset + 1
