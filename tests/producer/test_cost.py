"""What a send may cost: no task, no timer, no write of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rmq_async import Producer
from rmq_async.embedded import EmbeddedRocketMQ

from ..support.fakes import TOPIC
from ..support.instances import client_of
from .support import message, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.interpreters]

Way = Callable[[Producer], Awaitable[Any]]


async def deferred(sender: Producer) -> Any:
    return await (await sender.send_async(message()))


WAYS: dict[str, Way] = {
    "send": lambda sender: sender.send(message()),
    "send by key": lambda sender: sender.send(message(), key=7),
    "send_async": deferred,
    "send_oneway": lambda sender: sender.send_oneway(message()),
    "send_batch": lambda sender: sender.send_batch([message()]),
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the tasks and timers that the running loop is asked for meanwhile."""
    loop: Any = asyncio.get_running_loop()
    counts: Counter[str] = Counter()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        counts["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop, **options)

    def counting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def timer(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return original(*args, **options)

        return timer

    loop.set_task_factory(factory)
    for name in ("call_later", "call_at"):
        setattr(loop, name, counting(name, getattr(loop, name)))
    try:
        yield counts
    finally:
        loop.set_task_factory(None)
        del loop.call_later, loop.call_at
    counts["timers"] = max(counts["call_later"], counts["call_at"])  # asyncio's call_later calls call_at


@pytest.mark.parametrize("name", WAYS)
async def test_ten_thousand_successful_sends_make_no_task_and_no_timer(name: str) -> None:
    """One-way sends of fifty callers that all wait for a window have a timer each while they wait: for each of the first twelve."""
    way = WAYS[name]
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        for _ in range(10):
            await way(sender)

        async def worker() -> None:
            for _ in range(200):
                await way(sender)

        workers = [worker() for _ in range(50)]
        with counted() as counts:
            await asyncio.gather(*[asyncio.Task(each) for each in workers])
        assert counts["tasks"] == 0
        assert counts["timers"] <= (1000 if name == "send_oneway" else 10), counts
        await sender.flush()
        await until(lambda: len(server.messages(TOPIC)) == 10_010)


async def test_the_counting_counts() -> None:
    with counted() as counts:
        await asyncio.create_task(asyncio.sleep(0.001))
        asyncio.get_running_loop().call_later(0, lambda: None)
    assert counts["tasks"] == 1
    assert counts["timers"] >= 1


@pytest.mark.parametrize("name", ["send", "send_async", "send_batch"])
async def test_at_64_in_flight_eight_messages_share_a_write(name: str) -> None:
    way = WAYS[name]
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        await way(sender)
        connection = (await client_of(sender)).pool.open[server.brokers["broker-a"]]
        before = connection.writes

        async def worker() -> None:
            for _ in range(100):
                await way(sender)

        await asyncio.gather(*[worker() for _ in range(64)])
        writes = connection.writes - before
    print(6400 / writes, "messages in a write")
    assert writes <= 6400 / 8


async def test_a_burst_of_deferred_sends_leaves_in_few_writes() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        await sender.send(message())
        connection = (await client_of(sender)).pool.open[server.brokers["broker-a"]]
        before = connection.writes
        futures = [await sender.send_async(message()) for _ in range(5000)]
        await asyncio.gather(*futures)
        assert connection.writes - before <= 5000 / 8


async def test_one_way_sends_leave_in_few_writes() -> None:
    async with EmbeddedRocketMQ() as server, Producer("group", namesrv=server.namesrv) as sender:
        await sender.send(message())
        connection = (await client_of(sender)).pool.open[server.brokers["broker-a"]]
        before = connection.writes
        for _ in range(5000):
            await sender.send_oneway(message())
        await sender.flush()
        assert connection.writes - before <= 5000 / 8
