"""What a call that failed leaves behind: nothing that only the garbage collector can free."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from rmq_async import Message, Producer, RocketMQError

from .peers import TOPIC, Cluster, refuse, silent
from .support import message, messages, producer, until

CALLS = 10

Way = Callable[..., Awaitable[Any]]


def ways(sender: Producer) -> dict[str, Way]:
    async def deferred(item: Message, **options: Any) -> Any:
        return await (await sender.send_async(item, **options))

    async def told(item: Message, **options: Any) -> Any:
        return await (await sender.send_async(item, on_error=lambda _: None, **options))

    async def batched(item: Message, **options: Any) -> Any:
        return await sender.send_batch([item], **options)

    async def keyed(item: Message, **options: Any) -> Any:
        return await sender.send(item, key="k", **options)

    async def tagged(item: Message, **options: Any) -> Any:
        return await sender.send(Message(TOPIC, b"x", tags="t"), **options)

    return {
        "send": sender.send, "send_async": deferred, "callback": told, "send_batch": batched, "key": keyed, "tags": tagged,
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


def is_of_a_call(thing: object) -> bool:
    if isinstance(thing, FrameType):
        return "rmq_async/producer" in thing.f_code.co_filename
    return isinstance(thing, RocketMQError) or type(thing).__module__.startswith("rmq_async.producer")


def name_of(thing: object) -> str:
    return thing.f_code.co_qualname if isinstance(thing, FrameType) else type(thing).__name__


async def refusing(cluster: Cluster) -> None:
    cluster.answer(refuse(13))


async def refusing_each_attempt(cluster: Cluster) -> None:
    cluster.answer(refuse(14))


async def silence(cluster: Cluster) -> None:
    cluster.answer(silent)


async def absence(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        await broker.stop()


FAULTS = {
    "refused": (refusing, 1.0, False),
    "refused by all": (refusing_each_attempt, 1.0, False),
    "no answer": (silence, 0.02, False),
    "no broker": (absence, 0.02, False),
    "cancelled": (silence, 1.0, True),
}


@pytest.fixture
def frozen() -> Iterator[None]:
    """What is there before is left out, so that a collection takes a millisecond."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
async def test_failed_calls_leave_no_cycle(pair: Cluster, frozen: None, fault: str, batching: bool) -> None:
    begin, timeout, cancelled = FAULTS[fault]
    async with producer(pair, batching=batching, retries=1, async_retries=1, stop_timeout=0.1) as sender:
        await asyncio.gather(*[sender.send(item) for item in messages(4)])
        await begin(pair)
        for name, way in ways(sender).items():
            gc.collect()
            gc.disable()
            try:
                await asyncio.gather(*[failing(way, timeout, cancelled) for _ in range(CALLS)])
                await until(lambda: sender._sender.credits.taken == 0)
                await asyncio.sleep(0.005)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                left = Counter(name_of(thing) for thing in gc.garbage if is_of_a_call(thing))
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()
            assert not left, f"{CALLS} calls of {name} that failed ({fault}) leave {left}"
