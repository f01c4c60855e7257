"""The workloads of client machines in the library's scenarios. Each runs until a virtual time, and continues after errors of the
library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from rmq_async.admin import Admin
from rmq_async.consumer import PullConsumer
from rmq_async.errors import QueueNotExistError, ReplyTimeoutError, RocketMQError, TopicNotFoundError
from rmq_async.producer import Batching, Producer, TransactionProducer
from rmq_async.results import SendResult, TransactionStatus
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import Message, MessageQueue

from ..cluster import CallbackError, Cluster
from .readings import reading, returning
from .services import (
    AGAIN,
    CALM,
    KEYS,
    ROUND,
    Workload,
    every,
    keeps_sending,
    keeps_taking,
    new_body,
    reaches,
    serve,
    turns,
)

__all__ = ["WORKLOADS"]

LONG: Final = 60.0
"""Seconds of a long local transaction, or of a long check, at most: the broker checks meanwhile."""
SPACING: Final = 0.0005
"""Mean seconds between two calls of a stream."""
MANY_KEYS: Final = tuple(f"key-{number}" for number in range(12))
LAST_REQUESTS: Final = 60.0
"""Seconds after ``CALM`` in which requests still come."""
REJOINED: Final = 10.0
"""Seconds after which a broker, which forgets a client whose address has changed, knows that client again."""


async def plain(cluster: Cluster, until: float) -> None:
    """Awaits one send after the other; some with tags, keys, properties or a delay."""
    chance = cluster.generator("workload plain")

    async def work(producer: Producer) -> None:
        async for number in turns(cluster, chance, until):
            options: dict[str, Any] = {}
            if chance.random() < 0.5:
                options = {"tags": "a", "keys": [f"order-{number}"], "properties": {"region": "eu"}}
            if chance.random() < 0.05:
                options["delay_level"] = 1
            with suppress(RocketMQError):
                await producer.send(Message("Plain", new_body(chance, number), **options))

    await serve(cluster, until, lambda: Producer("plain", namesrv=cluster.namesrv), work, reaches(cluster, "Plain"))


async def fresh(cluster: Cluster, until: float) -> None:
    """Starts a producer for each message, to a topic that is on all brokers. Reports one that is said not to exist."""
    chance = cluster.generator("workload fresh")
    await _created(cluster, "Fresh", queues=2)

    async def send(number: int) -> None:
        async with Producer("fresh", namesrv=cluster.namesrv, instance_name=f"fresh-{number}") as producer:
            await producer.send(Message("Fresh", new_body(chance, number)))

    async for number in turns(cluster, chance, until):
        try:
            await send(number)
        except TopicNotFoundError as error:
            if not error.retriable:
                cluster.violation(f"unknown: {error}")
        except RocketMQError:
            continue
    await cluster.calm(CALM)
    try:
        await send(cluster.number())
    except RocketMQError as error:
        cluster.violation(f"stuck: a fresh producer failed {CALM:g} s after the last fault: {error!r}")


async def _created(cluster: Cluster, topic: str, *, queues: int, order: bool = False) -> None:
    """Creates a topic on all brokers, as soon as that is possible."""
    while True:
        with suppress(RocketMQError):
            await _create(cluster, topic, queues=queues, order=order)
            return
        await asyncio.sleep(AGAIN)


async def _create(cluster: Cluster, topic: str, *, queues: int, order: bool) -> None:
    async with Admin(namesrv=cluster.namesrv) as admin:
        await admin.create_topic(topic, queues=queues, order=order)


async def ordered(cluster: Cluster, until: float) -> None:
    """Sends with keys and with sharding keys, several at once."""
    chance = cluster.generator("workload ordered")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            key = KEYS[chance.randrange(3)]
            calls = []
            for _ in range(chance.randint(1, 6)):
                body = new_body(chance, cluster.number())
                by_key = chance.random() < 0.5
                message = Message("Ordered", body) if by_key else Message("Ordered", body, sharding_key=key)
                calls.append(producer.send(message, key=key) if by_key else producer.send(message))
            await every(calls)

    await serve(cluster, until, lambda: Producer("ordered", namesrv=cluster.namesrv), work, keeps_taking("Ordered", KEYS))


async def kept(cluster: Cluster, until: float) -> None:
    """Sends with keys to a topic with an order conf. Reports a key whose messages go to another queue than before."""
    chance = cluster.generator("workload kept")
    queues: dict[str, MessageQueue] = {}

    def check(key: str, result: SendResult) -> None:
        if queues.setdefault(key, result.queue) != result.queue:
            cluster.violation(f"moved: {key} has gone from {queues[key]} to {result.queue}, though the topic has an order conf")

    async def send(producer: Producer, key: str) -> None:
        message, kind = Message("Kept", new_body(chance, cluster.number())), chance.randrange(4)
        with suppress(RocketMQError):
            if kind == 0:
                check(key, await producer.send(message, key=key))
            elif kind == 1:
                check(key, await producer.send(Message("Kept", message.body, sharding_key=key)))
            elif kind == 2:
                check(key, await (await producer.send_async(message, key=key)))
            else:
                await producer.send(message)

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            await every([send(producer, chance.choice(MANY_KEYS)) for _ in range(chance.randint(1, 12))])

    async def afterwards(producer: Producer) -> None:
        await _create(cluster, "Kept", queues=4, order=True)  # two faults that overlap may have left fewer queues
        for key in MANY_KEYS:
            check(key, await producer.send(Message("Kept", f"afterwards-{key}".encode()), key=key))
        await reaches(cluster, "Kept")(producer)

    await _created(cluster, "Kept", queues=4, order=True)
    await serve(cluster, until, partial(Producer, "kept", namesrv=cluster.namesrv), work, afterwards)


async def streams(cluster: Cluster, until: float) -> None:
    """Sends streams with one key each, whose calls do not wait for each other."""
    chance = cluster.generator("workload streams")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            key, calls = KEYS[chance.randrange(3)], []
            for _ in range(chance.randint(5, 60)):
                message = Message("Streams", new_body(chance, cluster.number()))
                calls.append(asyncio.ensure_future(producer.send(message, key=key)))
                await asyncio.sleep(exponential(chance, SPACING))
            await every(calls)

    await serve(cluster, until, lambda: Producer("streams", namesrv=cluster.namesrv), work, keeps_taking("Streams", KEYS))


async def gathered(cluster: Cluster, until: float) -> None:
    """Sends bursts that travel in batches."""
    chance = cluster.generator("workload gathered")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            count = chance.randint(1, 20)
            await every([producer.send(Message("Gathered", new_body(chance, cluster.number()))) for _ in range(count)])

    make = partial(Producer, "gathered", namesrv=cluster.namesrv, batching=Batching(linger=0.01))
    await serve(cluster, until, make, work, reaches(cluster, "Gathered"))


async def bursts(cluster: Cluster, until: float) -> None:
    """Sends large bursts that travel in batches, whose messages have timeouts of their own."""
    chance = cluster.generator("workload bursts")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            calls = []
            for _ in range(chance.choice((10, 100, 400))):
                message = Message("Bursts", new_body(chance, cluster.number()))
                calls.append(producer.send(message, timeout=chance.choice((0.02, 0.2, 3.0, 3.0, 20.0))))
            await every(calls)

    make = partial(Producer, "bursts", namesrv=cluster.namesrv, batching=True)
    await serve(cluster, until, make, work, reaches(cluster, "Bursts"))


async def batches(cluster: Cluster, until: float) -> None:
    """Sends lists of messages, each as one batch."""
    chance = cluster.generator("workload batches")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            with suppress(RocketMQError):
                await producer.send_batch(
                    [Message("Batches", new_body(chance, cluster.number())) for _ in range(chance.randint(1, 12))]
                )

    make = partial(Producer, "batches", namesrv=cluster.namesrv)
    await serve(cluster, until, make, work, reaches(cluster, "Batches"))


async def asynchronous(cluster: Cluster, until: float) -> None:
    """Sends with futures, of which some are cancelled."""
    chance = cluster.generator("workload asynchronous")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            futures: list[asyncio.Future[Any]] = []
            for _ in range(chance.randint(1, 10)):
                with suppress(RocketMQError):
                    futures.append(await producer.send_async(Message("Asynchronous", new_body(chance, cluster.number()))))
            for future in futures:
                if chance.random() < 0.1:
                    future.cancel()
            await asyncio.gather(*futures, return_exceptions=True)

    make = partial(Producer, "asynchronous", namesrv=cluster.namesrv, async_limit=16)
    await serve(cluster, until, make, work, reaches(cluster, "Asynchronous"))


async def callbacks(cluster: Cluster, until: float) -> None:
    """Sends bursts with callbacks, some of which raise an error that is no ``Exception``."""
    chance = cluster.generator("workload callbacks")

    async def work(producer: Producer) -> None:
        async for _ in turns(cluster, chance, until):
            futures: list[asyncio.Future[Any]] = []
            for _ in range(chance.randint(2, 10)):
                message = Message("Callbacks", new_body(chance, cluster.number()))
                called = _raise if chance.random() < 0.2 else _ignore
                with suppress(RocketMQError):
                    futures.append(await producer.send_async(message, on_success=called, on_error=called))
            await asyncio.gather(*futures, return_exceptions=True)

    make = partial(Producer, "callbacks", namesrv=cluster.namesrv, batching=Batching(linger=0.01))
    await serve(cluster, until, make, work, reaches(cluster, "Callbacks"))


async def resized(cluster: Cluster, until: float) -> None:
    """Sends to a topic whose number of queues an operator changes. Reports a send that ends because its queue is gone, while there
    is time for another attempt."""
    chance = cluster.generator("workload resized")

    async def operate(admin: Admin) -> None:
        while cluster.now < until:
            with suppress(RocketMQError):
                await admin.create_topic("Resized", queues=chance.choice((1, 2, 8)))
            await asyncio.sleep(chance.uniform(5.0, 60.0))

    async def work(producer: Producer) -> None:
        async for number in turns(cluster, chance, until):
            for turn in range(4):
                began = cluster.now
                try:
                    await producer.send(Message("Resized", new_body(chance, number * 4 + turn)))
                except RocketMQError as error:
                    gone = isinstance(error, QueueNotExistError) or isinstance(error.__cause__, QueueNotExistError)
                    if gone and cluster.now - began < producer.config.timeout / 3:  # else too late for another attempt
                        cluster.violation(f"refused: a send ended because its queue is gone, though others exist: {error}")

    operator = serve(cluster, until, lambda: Admin(namesrv=cluster.namesrv), operate)
    make = partial(Producer, "resized", namesrv=cluster.namesrv)
    await asyncio.gather(operator, serve(cluster, until, make, work, reaches(cluster, "Resized")))


async def one_way(cluster: Cluster, until: float) -> None:
    """Sends messages that no broker confirms, with a window of eight."""
    chance = cluster.generator("workload one-way")

    async def work(producer: Producer) -> None:
        await keeps_sending(cluster, chance, until, "OneWay", producer.send_oneway)

    async def afterwards(producer: Producer) -> None:
        for number in range(2 * ROUND):
            await producer.send_oneway(Message("OneWay", f"afterwards-{number}".encode()))

    await serve(cluster, until, lambda: Producer("one-way", namesrv=cluster.namesrv, oneway_window=8), work, afterwards)


async def transactions(cluster: Cluster, until: float) -> None:
    """Sends half messages, and commits them, rolls them back, or leaves the end to a check by the broker."""
    chance = cluster.generator("workload transactions")
    outcomes: dict[bytes, TransactionStatus] = {}
    choices = (TransactionStatus.COMMIT, TransactionStatus.ROLLBACK, TransactionStatus.UNKNOWN)

    async def execute(message: Message, _: Any) -> TransactionStatus:
        await asyncio.sleep(chance.random() * (LONG if chance.random() < 0.05 and cluster.now < until else 0.1))
        status = chance.choice(choices)
        outcomes[bytes(message.body)] = TransactionStatus.COMMIT if status is TransactionStatus.UNKNOWN else status
        return status

    async def check(message: Any) -> TransactionStatus:
        await asyncio.sleep(chance.random() * (LONG if chance.random() < 0.2 else 0.1))
        return outcomes.get(bytes(message.body), TransactionStatus.ROLLBACK)

    async def send(producer: TransactionProducer, number: int) -> None:
        with suppress(RocketMQError):
            await producer.send_in_transaction(Message("Transactions", new_body(chance, number)))

    async def work(producer: TransactionProducer) -> None:
        await every([asyncio.ensure_future(send(producer, number)) async for number in turns(cluster, chance, until)])

    async def afterwards(producer: TransactionProducer) -> None:
        for number in range(ROUND):
            await producer.send_in_transaction(Message("Transactions", f"afterwards-{number}".encode()))

    await serve(
        cluster,
        until,
        lambda: TransactionProducer("transactions", execute=execute, check=check, namesrv=cluster.namesrv),
        work,
        afterwards,
    )


async def requests(cluster: Cluster, until: float) -> None:
    """Sends requests and checks their replies."""
    chance = cluster.generator("workload requests")

    async def ask(producer: Producer, body: bytes) -> None:
        reply = await producer.request(Message("Requests", body), timeout=4.0)
        if reply.body != b"re: " + body:
            cluster.violation(f"reply: the request {body[:10]!r} got the reply to another one")

    async def work(producer: Producer) -> None:
        async for number in turns(cluster, chance, until):
            with suppress(RocketMQError):
                await ask(producer, new_body(chance, number))

    async def afterwards(producer: Producer) -> None:
        for number in range(ROUND):
            try:
                await ask(producer, f"afterwards-{number}".encode())
            except ReplyTimeoutError:
                if not cluster.moved("requests"):
                    raise
                await asyncio.sleep(REJOINED)
                await ask(producer, f"again-{number}".encode())

    await serve(cluster, until, lambda: Producer("requests", namesrv=cluster.namesrv), work, afterwards)


async def replies(cluster: Cluster, until: float) -> None:
    """Replies to the requests of another machine, also to those that come after the last fault."""
    until += CALM + LAST_REQUESTS

    async def reply(producer: Producer) -> None:
        async def read(consumer: PullConsumer) -> None:
            async with asyncio.timeout(until - cluster.now):
                async for message in consumer.read("Requests", start="latest", end=None):
                    with suppress(RocketMQError):
                        await producer.reply(message, b"re: " + message.body)

        await serve(cluster, until, lambda: PullConsumer("replies", namesrv=cluster.namesrv), read)

    await serve(cluster, until, lambda: Producer("replies", namesrv=cluster.namesrv), reply)


async def administration(cluster: Cluster, until: float) -> None:
    """Creates topics and lists them."""
    chance = cluster.generator("workload administration")

    async def work(admin: Admin) -> None:
        async for number in turns(cluster, chance, until):
            with suppress(RocketMQError):
                await admin.create_topic(f"Created-{number % 5}", queues=chance.randint(1, 4))
                await admin.topics()

    await serve(cluster, until, lambda: Admin(namesrv=cluster.namesrv), work)


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        "plain": plain,
        "fresh": fresh,
        "ordered": ordered,
        "kept": kept,
        "streams": streams,
        "gathered": gathered,
        "batches": batches,
        "bursts": bursts,
        "asynchronous": asynchronous,
        "callbacks": callbacks,
        "resized": resized,
        "one-way": one_way,
        "transactions": transactions,
        "requests": requests,
        "replies": replies,
        "reading": reading,
        "returning": returning,
        "administration": administration,
    }
)
"""By name, which is also that of the machine."""


def _raise(_: object) -> None:
    raise CallbackError


def _ignore(_: object) -> None:
    """Does nothing: the history has the end of the call."""
