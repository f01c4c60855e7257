"""The common part of the services of all scenarios: the handling of errors, and the final checks after the last fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import suppress
from random import Random
from typing import Any, Final

from rmq_async.errors import RocketMQError
from rmq_async.producer import Producer
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import Message

from ..cluster import Cluster

__all__ = [
    "AGAIN", "CALM", "KEYS", "ROUND", "Workload", "every", "keeps_sending", "keeps_taking", "new_body", "reaches",
    "serve", "turns",
]  # fmt: skip

PAUSE: Final = 4.0
"""Mean seconds between two turns of a workload."""
CALM: Final = 65.0
"""Seconds without faults after which no call may fail: a broker is avoided for 30 s at most, and routes are polled every 30 s."""
ROUND: Final = 16
"""Sends within which each broker must have its turn: topics have up to eight queues on each of two brokers."""
LONGEST_AVOIDED: Final = 35.0
"""Seconds after which a broker that was avoided has its trial."""
KEYS: Final = ("key-0", "key-1", "key-2")
AGAIN: Final = 1.0
"""Seconds before a client is made anew after an error."""


Workload = Callable[[Cluster, float], Awaitable[None]]


async def serve(
    cluster: Cluster,
    until: float,
    client: Callable[[], Any],
    work: Callable[[Any], Awaitable[None]],
    afterwards: Callable[[Any], Awaitable[None]] | None = None,
) -> None:
    """Runs ``work`` with a started client until the time ``until``; after an error of the library, or a TimeoutError, with a new
    client.

    ``afterwards``: called with the client whose work has reached that time, ``CALM`` seconds after the last drawn fault; an error
    of it is a violation.
    """
    while cluster.now < until:
        try:
            async with client() as started:
                await work(started)
                if afterwards is not None and cluster.now >= until:
                    await cluster.calm(CALM)
                    await _must(cluster, afterwards(started))
        except (RocketMQError, TimeoutError):
            await asyncio.sleep(AGAIN)


async def _must(cluster: Cluster, doing: Awaitable[None]) -> None:
    try:
        await doing
    except (RocketMQError, TimeoutError) as error:
        cluster.violation(f"stuck: a call failed {CALM:g} s after the last fault: {error!r}")


def reaches(cluster: Cluster, topic: str) -> Callable[[Producer], Awaitable[None]]:
    """Returns a function that sends one message after the other; no send may fail, and each running broker that has the topic must
    get one of the last ``ROUND``."""

    async def once(producer: Producer) -> set[str]:
        bodies = (f"afterwards-{number}".encode() for number in range(ROUND))
        return {(await producer.send(Message(topic, body))).queue.broker_name for body in bodies}

    async def send(producer: Producer) -> None:
        await once(producer)  # it may meet a connection that died while nothing was sent, whose broker is avoided for a while
        await asyncio.sleep(LONGEST_AVOIDED)
        seen = await once(producer)
        if left := sorted(cluster.holders(topic) - seen):
            cluster.violation(
                f"neglected: {ROUND} sends to {topic}, {CALM:g} s after the last fault, left out {', '.join(left)}"
            )

    return send


def keeps_taking(topic: str, keys: Collection[str]) -> Callable[[Producer], Awaitable[None]]:
    """Returns a function that sends with each key; no send may fail."""

    async def send(producer: Producer) -> None:
        await asyncio.gather(*(producer.send(Message(topic, f"afterwards-{key}".encode()), key=key) for key in keys))

    return send


async def keeps_sending(
    cluster: Cluster, chance: Random, until: float, topic: str, send: Callable[[Message], Awaitable[object]]
) -> None:
    """Sends one to twenty messages at each turn, one after the other, whether sends succeed or not."""
    async for _ in turns(cluster, chance, until):
        for _ in range(chance.randint(1, 20)):
            with suppress(RocketMQError):
                await send(Message(topic, new_body(chance, cluster.number())))


async def turns(cluster: Cluster, chance: Random, until: float) -> AsyncIterator[int]:
    """Yields a new number for each turn, with pauses between the turns, until the time is over."""
    while cluster.now < until:
        yield cluster.number()
        await asyncio.sleep(exponential(chance, PAUSE))


async def every(calls: list[Any]) -> None:
    """Awaits all calls. Raises an error that is not one of the library: that of the first call, in their order, that has one."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, RocketMQError):
            raise result


def new_body(chance: Random, number: int) -> bytes:
    """Returns a body that begins with ``number``, too short to be compressed: compressed sizes differ between versions of zlib."""
    return f"{number}-".encode() + b"x" * chance.choice((0, 10, 200, 3000))
