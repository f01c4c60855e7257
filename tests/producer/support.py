"""Short ways to say what the producer's tests say often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rmq_async import ClientConfig, Message, MessageQueue, Producer, ProducerConfig
from rmq_async.client.route_table import TopicRoute
from rmq_async.producer.avoidance import Avoidance
from rmq_async.producer.lanes import Lane, LaneSettings
from rmq_protocol.route import TopicRouteData

from .peers import TOPIC, Cluster

GRACE = 0.05
"""Seconds by which a call may be late."""


def message(body: bytes = b"body", *, topic: str = TOPIC, **options: Any) -> Message:
    return Message(topic, body, **options)


def messages(count: int, **options: Any) -> list[Message]:
    return [message(b"%06d" % number, **options) for number in range(count)]


def producer(cluster: Cluster, group: str = "group", **options: Any) -> Producer:
    """Not started: use it as ``async with``."""
    return Producer(group, namesrv=cluster.namesrv, **options)


async def until(condition: Callable[[], Any], timeout: float = 5.0) -> None:
    """Waits until the condition holds; fails when it does not come to hold."""
    deadline = monotonic() + timeout
    while not condition():
        assert monotonic() < deadline, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


async def spin(steps: int = 1) -> None:
    """Lets the loop run that many iterations."""
    for _ in range(steps):
        await asyncio.sleep(0)


# -- the ways to send that have a result


Send = Callable[..., Awaitable[Any]]


async def awaited(sender: Producer, *, topic: str = TOPIC, **options: Any) -> Any:
    return await sender.send(message(topic=topic), **options)


async def deferred(sender: Producer, *, topic: str = TOPIC, **options: Any) -> Any:
    return await (await sender.send_async(message(topic=topic), **options))


async def batched(sender: Producer, *, topic: str = TOPIC, **options: Any) -> Any:
    return await sender.send_batch([message(topic=topic)], **options)


def every_way(brokers: int) -> Callable[[Callable[[Cluster, Send], Awaitable[None]]], Callable[[], Awaitable[None]]]:
    """The test runs three times at once: with ``awaited``, ``deferred`` and ``batched``, each on a cluster of its own."""

    def decorate(scenario: Callable[[Cluster, Send], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def one(send: Send) -> None:
            try:
                async with Cluster(brokers) as cluster:
                    await scenario(cluster, send)
            except BaseException as error:
                error.add_note(f"this was the way {getattr(send, '__name__', send)}")
                raise

        async def test() -> None:
            async with asyncio.TaskGroup() as group:
                for send in (awaited, deferred, batched):
                    group.create_task(one(send))

        test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
        return test

    return decorate


class Taken:
    """``seconds``: how long the block took. ``lag``: by how much the loop itself was late meanwhile, all in all."""

    def __init__(self) -> None:
        self.seconds = self.lag = 0.0
        self._loop = asyncio.get_running_loop()
        self._tick()

    def _tick(self) -> None:
        self._due = monotonic() + 0.005
        self._timer = self._loop.call_later(0.005, self._tock)

    def _tock(self) -> None:
        self._note()
        self._tick()

    def _note(self) -> None:
        self.lag += max(0.0, monotonic() - self._due - 0.002)

    def stop(self) -> None:
        self._note()  # the machine may have stood still since the last tick
        self._timer.cancel()


@contextmanager
def timed(least: float = 0.0, most: float = float("inf")) -> Iterator[Taken]:
    """Fails unless the block takes from ``least`` to ``most`` seconds; GRACE more, and what a busy machine made the loop late."""
    taken, began = Taken(), monotonic()
    try:
        yield taken
    finally:
        taken.stop()
    taken.seconds = monotonic() - began
    assert least - 0.005 <= taken.seconds <= most + GRACE + 2 * taken.lag, f"{taken.seconds:.3f} s, not {least} to {most}"


def seeded() -> random.Random:
    """A generator whose seed is in the test's output."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


async def outcomes(*waits: Any) -> list[Any]:
    """Results, or the exceptions in their place."""
    return await asyncio.gather(*waits, return_exceptions=True)


def lane_of(queues_per_broker: list[str]) -> Lane:
    """A lane of topic "T" with no cluster behind it; "a:2" is a broker and its queues."""
    counts = {broker: int(count) for broker, _, count in (each.partition(":") for each in queues_per_broker)}
    publish = tuple(MessageQueue("T", broker, number) for broker, count in counts.items() for number in range(count))
    addresses = {broker: {0: "127.0.0.1:1"} for broker in counts}
    route = TopicRoute("T", TopicRouteData((), ()), publish, (), addresses, 1)
    return Lane(route, LaneSettings("group", ProducerConfig(), ClientConfig(), 32))


def is_available(faults: Avoidance[Any], broker: str, now: float) -> bool:
    """Whether the broker is not left alone then."""
    item = faults.items.get(broker)
    return item is None or now >= item.available_from


class Calls:
    """Callbacks that write down what they are called with."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.errors: list[BaseException] = []

    @property
    def both(self) -> dict[str, Any]:
        return {"on_success": self.results.append, "on_error": self.errors.append}

    @property
    def count(self) -> int:
        return len(self.results) + len(self.errors)
