"""What client machines do in the library's scenarios: each workload is one service that runs until a virtual time.

A workload meets faults as a service does: it goes on after every error of the library. What it did is in the history; an error of
another kind ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from random import Random
from types import MappingProxyType
from typing import Any, Final, Protocol

from rmq_protocol.message import Message

from ....admin import Admin
from ....consumer import PullConsumer
from ....errors import QueueNotExistError, RocketMQError
from ....producer import Batching, Producer, TransactionProducer
from ....results import TransactionStatus
from ..errors import CallbackError

__all__ = ["WORKLOADS", "Cluster", "Workload"]

PAUSE: Final = 4.0
"""Mean seconds between two turns of a workload."""
SPACING: Final = 0.0005
"""Mean seconds between two calls of a stream."""
AGAIN: Final = 1.0
"""Seconds before a client that could not start is made anew."""


class Cluster(Protocol):
    """The simulation, as a workload uses it."""

    @property
    def now(self) -> float:
        """Seconds since the beginning."""

    @property
    def namesrv(self) -> str:
        """Addresses of the name servers."""

    def generator(self, name: str) -> Random:
        """Returns a new generator, seeded with the seed of the run and ``name``."""

    def number(self) -> int:
        """Returns a number that no other call has returned."""

    def violation(self, text: str) -> None:
        """Adds a violation to those of the checkers."""


Workload = Callable[[Cluster, float], Awaitable[None]]


async def plain(cluster: Cluster, until: float) -> None:
    """Awaits one send after the other; some with tags, keys, properties or a delay."""
    chance = cluster.generator("workload plain")

    async def work(producer: Producer) -> None:
        async for number in _turns(cluster, chance, until):
            options: dict[str, Any] = {}
            if chance.random() < 0.5:
                options = {"tags": "a", "keys": [f"order-{number}"], "properties": {"region": "eu"}}
            if chance.random() < 0.05:
                options["delay_level"] = 1
            with suppress(RocketMQError):
                await producer.send(Message("Plain", _body(chance, number), **options))

    await _serve(cluster, until, lambda: Producer("plain", namesrv=cluster.namesrv), work)


async def ordered(cluster: Cluster, until: float) -> None:
    """Sends with keys and with sharding keys, several at once."""
    chance = cluster.generator("workload ordered")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            key = f"key-{chance.randrange(3)}"
            calls = []
            for _ in range(chance.randint(1, 6)):
                body = _body(chance, cluster.number())
                by_key = chance.random() < 0.5
                message = Message("Ordered", body) if by_key else Message("Ordered", body, sharding_key=key)
                calls.append(producer.send(message, key=key) if by_key else producer.send(message))
            await _all(calls)

    await _serve(cluster, until, lambda: Producer("ordered", namesrv=cluster.namesrv), work)


async def streams(cluster: Cluster, until: float) -> None:
    """Sends streams with one key each, whose calls do not wait for each other."""
    chance = cluster.generator("workload streams")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            key, calls = f"key-{chance.randrange(3)}", []
            for _ in range(chance.randint(5, 60)):
                message = Message("Streams", _body(chance, cluster.number()))
                calls.append(asyncio.ensure_future(producer.send(message, key=key)))
                await asyncio.sleep(chance.expovariate(1 / SPACING))
            await _all(calls)

    await _serve(cluster, until, lambda: Producer("streams", namesrv=cluster.namesrv), work)


async def gathered(cluster: Cluster, until: float) -> None:
    """Sends bursts that travel in batches."""
    chance = cluster.generator("workload gathered")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            count = chance.randint(1, 20)
            await _all([producer.send(Message("Gathered", _body(chance, cluster.number()))) for _ in range(count)])

    await _serve(cluster, until, lambda: Producer("gathered", namesrv=cluster.namesrv, batching=Batching(linger=0.01)), work)


async def bursts(cluster: Cluster, until: float) -> None:
    """Sends large bursts that travel in batches, whose messages have times of their own."""
    chance = cluster.generator("workload bursts")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            calls = []
            for _ in range(chance.choice((10, 100, 400))):
                message = Message("Bursts", _body(chance, cluster.number()))
                calls.append(producer.send(message, timeout=chance.choice((0.02, 0.2, 3.0, 3.0, 20.0))))
            await _all(calls)

    await _serve(cluster, until, lambda: Producer("bursts", namesrv=cluster.namesrv, batching=True), work)


async def batches(cluster: Cluster, until: float) -> None:
    """Sends lists of messages, each as one batch."""
    chance = cluster.generator("workload batches")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            with suppress(RocketMQError):
                await producer.send_batch(
                    [Message("Batches", _body(chance, cluster.number())) for _ in range(chance.randint(1, 12))]
                )

    await _serve(cluster, until, lambda: Producer("batches", namesrv=cluster.namesrv), work)


async def asynchronous(cluster: Cluster, until: float) -> None:
    """Sends with futures, of which some are cancelled."""
    chance = cluster.generator("workload asynchronous")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            futures: list[asyncio.Future[Any]] = []
            for _ in range(chance.randint(1, 10)):
                with suppress(RocketMQError):
                    futures.append(await producer.send_async(Message("Asynchronous", _body(chance, cluster.number()))))
            for future in futures:
                if chance.random() < 0.1:
                    future.cancel()
            await asyncio.gather(*futures, return_exceptions=True)

    await _serve(cluster, until, lambda: Producer("asynchronous", namesrv=cluster.namesrv, async_limit=16), work)


async def callbacks(cluster: Cluster, until: float) -> None:
    """Sends bursts with callbacks, of which some end with an error that ends a program."""
    chance = cluster.generator("workload callbacks")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            futures: list[asyncio.Future[Any]] = []
            for _ in range(chance.randint(2, 10)):
                message = Message("Callbacks", _body(chance, cluster.number()))
                called = _raise if chance.random() < 0.2 else _ignore
                with suppress(RocketMQError):
                    futures.append(await producer.send_async(message, on_success=called, on_error=called))
            await asyncio.gather(*futures, return_exceptions=True)

    await _serve(cluster, until, lambda: Producer("callbacks", namesrv=cluster.namesrv, batching=Batching(linger=0.01)), work)


async def resized(cluster: Cluster, until: float) -> None:
    """Sends to a topic whose number of queues an operator changes; no send may end because its queue is gone."""
    chance = cluster.generator("workload resized")

    async def operate(admin: Admin) -> None:
        while cluster.now < until:
            with suppress(RocketMQError):
                await admin.create_topic("Resized", queues=chance.choice((1, 2, 8)))
            await asyncio.sleep(chance.uniform(5.0, 60.0))

    async def work(producer: Producer) -> None:
        async for number in _turns(cluster, chance, until):
            for turn in range(4):
                try:
                    await producer.send(Message("Resized", _body(chance, number * 4 + turn)))
                except RocketMQError as error:
                    if isinstance(error, QueueNotExistError) or isinstance(error.__cause__, QueueNotExistError):
                        cluster.violation(f"refused: a send ended because its queue is gone, though others exist: {error}")

    operator = _serve(cluster, until, lambda: Admin(namesrv=cluster.namesrv), operate)
    await asyncio.gather(operator, _serve(cluster, until, lambda: Producer("resized", namesrv=cluster.namesrv), work))


async def one_way(cluster: Cluster, until: float) -> None:
    """Sends messages that no broker confirms, with a window of eight."""
    chance = cluster.generator("workload one-way")

    async def work(producer: Producer) -> None:
        async for _ in _turns(cluster, chance, until):
            for _ in range(chance.randint(1, 20)):
                with suppress(RocketMQError):
                    await producer.send_oneway(Message("OneWay", _body(chance, cluster.number())))

    await _serve(cluster, until, lambda: Producer("one-way", namesrv=cluster.namesrv, oneway_window=8), work)


async def transactions(cluster: Cluster, until: float) -> None:
    """Commits, rolls back, or leaves the end to a check by the broker."""
    chance = cluster.generator("workload transactions")
    outcomes: dict[bytes, TransactionStatus] = {}
    choices = (TransactionStatus.COMMIT, TransactionStatus.ROLLBACK, TransactionStatus.UNKNOWN)

    async def execute(message: Message, _: Any) -> TransactionStatus:
        await asyncio.sleep(chance.random() * 0.1)
        status = chance.choice(choices)
        outcomes[bytes(message.body)] = TransactionStatus.COMMIT if status is TransactionStatus.UNKNOWN else status
        return status

    async def check(message: Any) -> TransactionStatus:
        return outcomes.get(bytes(message.body), TransactionStatus.ROLLBACK)

    async def work(producer: TransactionProducer) -> None:
        async for number in _turns(cluster, chance, until):
            with suppress(RocketMQError):
                await producer.send_in_transaction(Message("Transactions", _body(chance, number)))

    await _serve(
        cluster,
        until,
        lambda: TransactionProducer("transactions", execute=execute, check=check, namesrv=cluster.namesrv),
        work,
    )


async def requests(cluster: Cluster, until: float) -> None:
    """Sends requests and checks their replies."""
    chance = cluster.generator("workload requests")

    async def work(producer: Producer) -> None:
        async for number in _turns(cluster, chance, until):
            body = _body(chance, number)
            with suppress(RocketMQError):
                reply = await producer.request(Message("Requests", body), timeout=4.0)
                if reply.body != b"re: " + body:
                    cluster.violation(f"reply: the request {number} got the reply to another one")

    await _serve(cluster, until, lambda: Producer("requests", namesrv=cluster.namesrv), work)


async def replies(cluster: Cluster, until: float) -> None:
    """Replies to the requests of another machine."""

    async def reply(producer: Producer) -> None:
        async def read(consumer: PullConsumer) -> None:
            async with asyncio.timeout(until - cluster.now):
                async for message in consumer.read("Requests", start="latest", end=None):
                    with suppress(RocketMQError):
                        await producer.reply(message, b"re: " + message.body)

        await _serve(cluster, until, lambda: PullConsumer("replies", namesrv=cluster.namesrv), read)

    await _serve(cluster, until, lambda: Producer("replies", namesrv=cluster.namesrv), reply)


async def reading(cluster: Cluster, until: float) -> None:
    """Reads a topic from its beginning and follows it, each minute anew; the offsets of each queue must rise."""

    async def read(consumer: PullConsumer) -> None:
        ends: dict[object, int] = {}
        async with asyncio.timeout(min(60.0, until - cluster.now)):
            async for message in consumer.read("Plain", start="earliest", end=None):
                queue = message.queue
                before = ends.get(queue)
                if before is not None and message.queue_offset <= before:
                    cluster.violation(f"reading: offset {message.queue_offset} of {queue} came after {before}")
                elif before is not None and message.queue_offset > before + 1:
                    cluster.violation(f"gap: the reader got offset {message.queue_offset} of {queue} after {before}")
                ends[queue] = message.queue_offset

    await _serve(cluster, until, lambda: PullConsumer("reading", namesrv=cluster.namesrv), read)


async def administration(cluster: Cluster, until: float) -> None:
    """Creates topics and lists them."""
    chance = cluster.generator("workload administration")

    async def work(admin: Admin) -> None:
        async for number in _turns(cluster, chance, until):
            with suppress(RocketMQError):
                await admin.create_topic(f"Created-{number % 5}", queues=chance.randint(1, 4))
                await admin.topics()

    await _serve(cluster, until, lambda: Admin(namesrv=cluster.namesrv), work)


WORKLOADS: Final[Mapping[str, Workload]] = MappingProxyType(
    {
        "plain": plain,
        "ordered": ordered,
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
        "administration": administration,
    }
)
"""By name, which is also that of the machine."""


async def _serve(cluster: Cluster, until: float, client: Callable[[], Any], work: Callable[[Any], Awaitable[None]]) -> None:
    """Does ``work`` with a started client, and again with a new one after each error of the library, until the time is over."""
    while cluster.now < until:
        try:
            async with client() as started:
                await work(started)
        except (RocketMQError, TimeoutError):
            await asyncio.sleep(AGAIN)


async def _turns(cluster: Cluster, chance: Random, until: float) -> AsyncIterator[int]:
    """Returns a new number for each turn, with pauses between them, until the time is over."""
    while cluster.now < until:
        yield cluster.number()
        await asyncio.sleep(chance.expovariate(1 / PAUSE))


async def _all(calls: list[Any]) -> None:
    """Awaits all calls. Raises the first error that is none of the library's."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, RocketMQError):
            raise result


def _raise(_: object) -> None:
    raise CallbackError


def _ignore(_: object) -> None:
    """Does nothing: the history has the end of the call."""


def _body(chance: Random, number: int) -> bytes:
    """Returns a body that no other message has. None is compressed: sizes, and so times, differ between versions of zlib."""
    return f"{number}-".encode() + b"x" * chance.choice((0, 10, 200, 3000))
