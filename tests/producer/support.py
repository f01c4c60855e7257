"""Short ways to say what the producer's tests say often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast

from rmq_async import ClientConfig, Message, MessageQueue, Producer, machine
from rmq_async.client.route_table import TopicRoute
from rmq_async.errors import RequestTimeoutError
from rmq_async.producer.batching.batcher import Batcher
from rmq_async.producer.calls.attempts import AttemptRecord
from rmq_async.producer.core import ProducerCore
from rmq_async.producer.routing import Target
from rmq_async.producer.routing.avoidance import Avoidance
from rmq_async.producer.routing.topic_queues import HeaderSettings, TopicQueues
from rmq_async.testing.simulation import SimulatedLoop
from rmq_protocol.route import TopicRouteData

from ..support.fakes import TOPIC, Cluster
from ..support.waiting import spin as spin
from ..support.waiting import until as until

GRACE = 0.05
"""Seconds by which a call may be late."""


def message(body: bytes = b"body", *, topic: str = TOPIC, **options: Any) -> Message:
    return Message(topic, body, **options)


def messages(count: int, **options: Any) -> list[Message]:
    return [message(b"%06d" % number, **options) for number in range(count)]


def producer(cluster: Cluster, group: str = "group", **options: Any) -> Producer:
    """Not started: use it as ``async with``. On a real loop a call has a minute, because the test may get little of the machine."""
    if machine.executor is None:
        options.setdefault("timeout", 60.0)
    return Producer(group, namesrv=cluster.namesrv, **options)


# -- what a producer is made of


def core_of(sender: Producer) -> ProducerCore:
    """The one place where tests look behind the public face of a producer, for parts that only it makes and joins."""
    return sender._sender


def queue_places(batcher: Batcher) -> list[MessageQueue]:
    """The queues for which it keeps a place where messages with an order gather."""
    return [*batcher.fixed, *batcher._chosen]


def gathers_nothing(batcher: Batcher) -> bool:
    """Whether no message, place or request is left there, and no place of a topic counts a request."""
    idle = repr(batcher) == "<Batcher 0 messages gathered, 0 requests in flight>"
    return idle and not queue_places(batcher) and not any(any(each._under_way.values()) for each in batcher._in_turn.values())


TIMED_OUT = RequestTimeoutError("late", maybe_stored=True)


class Made(AttemptRecord):
    """An attempt as the retry policy sees it."""

    def __init__(
        self,
        broker: str,
        error: BaseException | None = TIMED_OUT,
        open: bool = False,
        maybe_stored: bool = False,
        elapsed: float = 0.0,
    ) -> None:
        super().__init__(cast(Target, SimpleNamespace(broker=broker)), 0.0, None, lambda *_: None, lambda: None)
        self.error, self.open, self.maybe_stored, self.elapsed = error, open, maybe_stored, elapsed


def tasks_named(name: str) -> list[asyncio.Task[Any]]:
    """Tasks of this loop that are not done."""
    return [task for task in asyncio.all_tasks() if task.get_name().startswith(name)]


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
    """``seconds``: how long the block took."""

    seconds = 0.0


@contextmanager
def timed(least: float = 0.0, most: float = float("inf")) -> Iterator[Taken]:
    """Fails unless the block takes from ``least`` to ``most`` seconds of virtual time; GRACE more is allowed."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop), (
        "seconds of a real loop say nothing; mark the test virtual_time"
    )
    taken, began = Taken(), monotonic()
    yield taken
    taken.seconds = monotonic() - began
    assert least - 0.005 <= taken.seconds <= most + GRACE, f"{taken.seconds:.3f} s, not {least} to {most}"


def seeded() -> random.Random:
    """A generator whose seed is in the test's output."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    return random.Random(seed)


async def outcomes(*waits: Any) -> list[Any]:
    """Results, or the exceptions in their place."""
    return await asyncio.gather(*waits, return_exceptions=True)


async def every_call(sender: Producer) -> list[Any]:
    return await outcomes(
        sender.send(message()),
        sender.send(message(), key=1),
        sender.send_async(message()),
        sender.send_oneway(message()),
        sender.send_batch([message()]),
        sender.fetch_publish_queues(TOPIC),
        sender.flush(),
    )


def topic_queues_of(queues_per_broker: list[str]) -> TopicQueues:
    """The queues of topic "T" with no cluster behind it; "a:2" is a broker and its queues."""
    counts = {broker: int(count) for broker, _, count in (each.partition(":") for each in queues_per_broker)}
    publish = tuple(MessageQueue("T", broker, number) for broker, count in counts.items() for number in range(count))
    addresses = {broker: {0: "127.0.0.1:1"} for broker in counts}
    route = TopicRoute("T", TopicRouteData((), ()), publish, (), addresses, 1)
    return TopicQueues(route, HeaderSettings("group", ClientConfig(), 32))


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
