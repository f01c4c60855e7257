"""Whose context variables users' functions see, and whose the library's own tasks do not keep alive."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from rmq_async import Message, MessageQueue, Producer

from ..support.fakes import Cluster, each, refuse, stored
from .support import message, producer, until

pytestmark = [pytest.mark.virtual_time, pytest.mark.interpreters]

OWNER: ContextVar[str] = ContextVar("whose call it is", default="none")


class Scope:
    """What a caller's context holds."""


SCOPE: ContextVar[Scope | None] = ContextVar("scope", default=None)


@pytest.mark.parametrize("batching", [False, True])
@pytest.mark.parametrize("way", ["send", "send_async"])
async def test_selector_of_retries_sees_its_caller(pair: Cluster, way: str, batching: bool) -> None:
    seen: Counter[str] = Counter()
    called: Counter[str] = Counter()

    def selector(queues: Sequence[MessageQueue], item: Message, key: Any) -> MessageQueue:
        seen["own" if OWNER.get() == item.body.decode() else OWNER.get()] += 1
        return queues[seen.total() % len(queues)]

    async def call(number: int) -> None:
        OWNER.set(f"{number}")
        item = message(b"%d" % number)
        if way == "send":
            await sender.send(item)
        else:
            await (await sender.send_async(item, on_success=lambda _: called.update([OWNER.get()])))

    async with producer(pair, queue_selector=selector, batching=batching) as sender:
        await call(0)
        seen.clear()
        called.clear()
        pair.answer(each(refuse(14), stored))
        await asyncio.gather(*[call(number) for number in range(30)])
    assert seen["own"] == seen.total() > 30
    assert way == "send" or called == Counter(str(number) for number in range(30))


@pytest.mark.parametrize("batching", [False, True])
async def test_no_context_outlives_its_callers(pair: Cluster, batching: bool) -> None:
    """Of the caller that starts the client, and makes the first send to a topic, and of one whose send is tried again."""
    refused = each(refuse(14), refuse(14), stored)

    async def begin(sender: Producer) -> weakref.ref[Scope]:
        scope = Scope()
        SCOPE.set(scope)
        await sender.start()
        await asyncio.gather(*[sender.send(message()) for _ in range(4)])
        pair.answer(refused)
        await (await sender.send_async(message()))
        await sender.send(message(), key="k")
        await sender.send_oneway(message())
        return weakref.ref(scope)

    sender = producer(pair, batching=batching, latency_fault=True, detector=True, heartbeat_interval=0.05)
    try:
        scope = await asyncio.create_task(begin(sender))
        await until(lambda: gc.collect() >= 0 and scope() is None)
    finally:
        await sender.stop()
