"""What a call leaves behind that failed, or whose wait was ended: nothing that only the garbage collector can free."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rmq_async import Message, Producer
from rmq_async.errors import ClientStateError, RequestTimeoutError

from ..support.cycles import frozen as frozen
from ..support.cycles import no_cycle
from ..support.fakes import TOPIC, Cluster, refuse, silence
from ..support.instances import client_of
from .support import core_of, message, messages, outcomes, producer, tasks_named, until

pytestmark = pytest.mark.virtual_time

CALLS = 10

Way = Callable[..., Awaitable[Any]]


def ways(sender: Producer) -> dict[str, Way]:
    async def deferred(item: Message, **options: Any) -> Any:
        return await (await sender.send_async(item, **options))

    async def by_callback(item: Message, **options: Any) -> Any:
        return await (await sender.send_async(item, on_error=lambda _: None, **options))

    async def batched(item: Message, **options: Any) -> Any:
        return await sender.send_batch([item], **options)

    async def keyed(item: Message, **options: Any) -> Any:
        return await sender.send(item, key="k", **options)

    async def tagged(item: Message, **options: Any) -> Any:
        return await sender.send(Message(TOPIC, b"x", tags="t"), **options)

    return {
        "send": sender.send, "send_async": deferred, "callback": by_callback, "send_batch": batched, "key": keyed, "tags": tagged,
        "request": sender.request, "send_oneway": sender.send_oneway,
    }  # fmt: skip


async def failing(way: Way, timeout: float, cancelled: bool) -> None:
    call = asyncio.ensure_future(way(message(), timeout=timeout))
    if cancelled:
        await asyncio.sleep(0.002)
        call.cancel()
    await asyncio.wait([call])
    if not call.cancelled():
        call.exception()


async def refusing(cluster: Cluster) -> None:
    cluster.answer(refuse(13))


async def refusing_each_attempt(cluster: Cluster) -> None:
    cluster.answer(refuse(14))


async def silenced(cluster: Cluster) -> None:
    cluster.answer(silence)


async def absence(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        await broker.stop()


FAULTS = {
    "refused": (refusing, 1.0, False),
    "refused by all": (refusing_each_attempt, 1.0, False),
    "no answer": (silenced, 0.02, False),
    "no broker": (absence, 0.02, False),
    "cancelled": (silenced, 1.0, True),
}


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_failed_calls_leave_no_cycle(pair: Cluster, frozen: None, fault: str, batching: bool) -> None:
    begin, timeout, cancelled = FAULTS[fault]
    async with producer(pair, batching=batching, retries=1, async_retries=1, stop_timeout=0.1) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        await begin(pair)
        for name, way in ways(sender).items():
            async with no_cycle(f"{CALLS} calls of {name} that failed ({fault})"):
                await asyncio.gather(*[failing(way, timeout, cancelled) for _ in range(CALLS)])
                await until(lambda: sender.health().unanswered == 0)
                await asyncio.sleep(0.005)


# -- waits that something else than an answer ends


async def hang(*_: object) -> Any:
    await asyncio.Event().wait()


async def for_credits(sender: Producer, cluster: Cluster) -> None:
    await stopped(sender, [sender.send(message()) for _ in range(4)])


async def in_line(sender: Producer, cluster: Cluster) -> None:
    await stopped(sender, [sender.send(message(), key="k") for _ in range(4)])


async def for_turns(sender: Producer, cluster: Cluster) -> None:
    ways = (sender.send, *[sender.send_oneway] * 3)
    await stopped(sender, [way(message(), queue=cluster.queue()) for way in ways])


async def for_selectors(sender: Producer, cluster: Cluster) -> None:
    await stopped(sender, [sender.send(message(), selector=hang) for _ in range(2)])


async def stopped(sender: Producer, calls: list[Any]) -> None:
    running = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.02)
    await sender.stop(0.0)
    assert {type(error) for error in await outcomes(*running)} == {ClientStateError}


async def for_late_selectors(sender: Producer, cluster: Cluster) -> None:
    for _ in range(4):
        assert isinstance((await outcomes(sender.send(message(), selector=hang, timeout=0.01)))[0], RequestTimeoutError)


async def for_brokers(sender: Producer, cluster: Cluster) -> None:
    await cluster.a.stop()
    for _ in range(2):
        call = asyncio.ensure_future(sender.send(message()))
        await until(lambda: len(core_of(sender).recovery))
        call.cancel()
        await asyncio.wait([call])
    await until(lambda: not tasks_named("rmq_async recovery"))
    pool = (await client_of(sender)).pool
    await until(lambda: not pool.connecting(cluster.a.address))


@pytest.mark.parametrize("wait", [for_credits, in_line, for_turns, for_selectors, for_late_selectors, for_brokers])
async def test_ended_waits_leave_no_cycle(
    cluster: Cluster, frozen: None, wait: Callable[[Producer, Cluster], Awaitable[None]]
) -> None:
    async with producer(cluster, async_limit=1 if wait in (for_credits, in_line) else 100, stop_timeout=0.0) as sender:
        await sender.send(message())
        cluster.answer(silence)
        async with no_cycle(f"waits {wait.__name__}"):
            await wait(sender, cluster)
            await asyncio.sleep(0.005)
