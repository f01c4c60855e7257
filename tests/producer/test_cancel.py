"""Cancelling at every step of every call: no entry, no credit, no task, no turn is left."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Producer
from rmq_async._asyncio import StopScope
from rmq_async.producer.admission.ordering import Line
from rmq_async.producer.core import ProducerCore
from rmq_async.transport import Connection

from ..support.fakes import Cluster, cut, each, late, refuse, stored
from .support import core_of, message, messages, outcomes, producer, seeded, spin, until

pytestmark = pytest.mark.interpreters

Call = Callable[[Producer], Awaitable[Any]]


async def deferred(sender: Producer) -> Any:
    return await (await sender.send_async(message()))


async def deferred_by_key(sender: Producer) -> Any:
    return await (await sender.send_async(message(), key=1))


async def batch_to_a_queue(sender: Producer) -> Any:
    (queue, *_) = await sender.fetch_publish_queues("T")
    return await sender.send_batch(messages(2), queue=queue)


CALLS: dict[str, Call] = {
    "send": lambda sender: sender.send(message()),
    "send by key": lambda sender: sender.send(message(), key=1),
    "send large": lambda sender: sender.send(message(b"x" * 70_000)),
    "send_async": deferred,
    "send_async by key": deferred_by_key,
    "send_oneway": lambda sender: sender.send_oneway(message()),
    "send_oneway by key": lambda sender: sender.send_oneway(message(), key=1),
    "send_batch": lambda sender: sender.send_batch(messages(2)),
    "send_batch to a queue": batch_to_a_queue,
    "flush": lambda sender: sender.flush(),
    "fetch_publish_queues": lambda sender: sender.fetch_publish_queues("T"),
}


def account(sender: Producer) -> tuple[int, ...]:
    credits, oneway = core_of(sender).credits, core_of(sender).oneway_credits
    return credits.taken, credits.taken_bytes, credits.waiting, oneway.taken, oneway.taken_bytes, oneway.waiting


def sends_pending(sender: Producer) -> list[Connection]:
    """Connections that wait for answers to sends, or hold frames back."""
    connections = core_of(sender).connections.values()
    return [each for each in connections if each.requests.sends_in_flight or not repr(each).endswith(" 0 held>")]


def waiting(tracked: list[Any]) -> int:
    """Calls that wait in a line, for something that a stop would end, or for a further attempt."""
    lines = sum(len(each.places) for each in tracked if isinstance(each, Line))
    waits = sum(len(each) for each in tracked if isinstance(each, StopScope))
    return lines + waits + sum(len(each.dispatch.calls) for each in tracked if isinstance(each, ProducerCore))


async def cancel_after(sender: Producer, call: Call, steps: int, tracked: list[Any]) -> bool:
    """Whether the call was over before it could be cancelled."""
    task = asyncio.ensure_future(call(sender))
    await spin(steps)
    over = task.done()
    task.cancel()
    await outcomes(task)
    await spin(2)  # a one-way frame leaves at the end of the iteration
    assert not sends_pending(sender), steps
    assert waiting(tracked) == 0, steps
    assert account(sender) == (0,) * 6, steps
    return over


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_after_any_number_of_steps_on_a_cold_topic(cluster: Cluster, name: str, tracked: list[Any]) -> None:
    """From before the route is asked for to after the answer; the connection is made anew each time."""
    steps = 0
    while True:
        async with producer(cluster, oneway_window=0) as sender:
            over = await cancel_after(sender, CALLS[name], steps, tracked)
            await sender.send(message(b"after"))
        if over:
            break
        steps += 1
        assert steps < 500
    print(name, steps, "steps")


@pytest.mark.parametrize("name", CALLS)
async def test_cancelled_after_any_number_of_steps_on_a_warm_one(cluster: Cluster, name: str, tracked: list[Any]) -> None:
    async with producer(cluster, oneway_window=0) as sender:
        await sender.send(message())
        for steps in range(500):
            if await cancel_after(sender, CALLS[name], steps, tracked):
                break
        await sender.send(message(b"after"))
    assert steps < 100


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["send", "send_async", "send_batch"])
async def test_cancelled_after_any_number_of_steps_of_a_retry(pair: Cluster, name: str, tracked: list[Any]) -> None:
    """The first broker breaks off, the second has to be connected to."""
    async with producer(pair) as sender:
        for steps in range(80):
            for broker in pair.brokers:
                broker.answer = each(cut, stored)
            await cancel_after(sender, CALLS[name], steps, tracked)
        for broker in pair.brokers:
            broker.answer = each(cut, stored)
        assert (await CALLS[name](sender)).attempts > 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["send", "send by key", "send_async", "send_batch", "send_oneway"])
async def test_cancelled_while_it_waits_for_a_credit(cluster: Cluster, name: str, tracked: list[Any]) -> None:
    cluster.a.answer = late(0.005)
    async with producer(cluster, async_limit=1, oneway_limit=1) as sender:
        for steps in range(25):
            first = asyncio.ensure_future(sender.send(message()))
            await spin()
            task = asyncio.ensure_future(CALLS[name](sender))
            await spin(steps)
            task.cancel()
            await outcomes(first, task)
            await sender.flush()
            await spin(2)
            assert account(sender) == (0,) * 6
            assert waiting(tracked) == 0


@pytest.mark.virtual_time
async def test_a_thousand_cancelled_at_random_moments(pair: Cluster, tracked: list[Any]) -> None:
    source = seeded()
    pair.answer(late(0.001))

    def moody(link: Any, sent: Any) -> None:
        source.choice([stored, stored, late(0.002), refuse(1), refuse(2)])(link, sent)

    pair.answer(moody)
    kinds = [CALLS[name] for name in ("send", "send by key", "send_async", "send_async by key", "send_oneway", "send_batch")]
    async with producer(pair, async_limit=100, oneway_window=16, timeout=2.0, stop_timeout=0.5) as sender:
        tasks = [asyncio.ensure_future(source.choice(kinds)(sender)) for _ in range(2000)]
        victims = random.Random(source.random()).sample(tasks, 1000)
        while victims:
            for _ in range(source.randrange(1, 60)):
                if victims:
                    victims.pop().cancel()
            await spin(source.randrange(4))
        results = await outcomes(*tasks)
        print(sum(isinstance(result, asyncio.CancelledError) for result in results), "were cancelled in time")
        await sender.flush()
        await until(lambda: not sends_pending(sender))
        assert account(sender) == (0,) * 6
        assert waiting(tracked) == 0
        pair.answer(stored)
        await sender.send(message())


@pytest.mark.virtual_time
async def test_one_cancelled_call_does_not_take_the_shared_look_up_along(cluster: Cluster) -> None:
    cluster.name_server.delay = 0.05
    async with producer(cluster) as sender:
        first = asyncio.ensure_future(sender.send(message(b"first")))
        second = asyncio.ensure_future(sender.send(message(b"second")))
        await asyncio.sleep(0.02)
        first.cancel()
        assert (await second).attempts == 1
    assert cluster.name_server.asked == ["T"]
    assert cluster.a.bodies == [b"second"]


@pytest.mark.virtual_time
async def test_a_timeout_around_a_send_is_respected(cluster: Cluster) -> None:
    cluster.a.answer = late(0.2)
    async with producer(cluster) as sender:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await sender.send(message())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.send(message(), key=1), 0.05)
        assert account(sender) == (0,) * 6
