"""The context (of contextvars) in which callbacks and hooks run."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from rmq_async import Hook, Producer

from ...support.fakes import Cluster, silence
from ..support import message, outcomes, producer, until
from .support import SEND

pytestmark = pytest.mark.virtual_time


async def test_callbacks_run_in_the_callers_context_and_hooks_of_requests_in_none(cluster: Cluster) -> None:
    caller: ContextVar[str] = ContextVar("caller", default="no caller")

    class Asks(Hook):
        def after_request(self, *arguments: Any) -> None:
            if arguments[1].code in SEND:
                seen.append(caller.get())

    seen: list[str] = []
    calls: list[str] = []

    async def one(name: str, sender: Producer) -> None:
        caller.set(name)
        future = await sender.send_async(
            message(),
            timeout=0.2,
            on_success=lambda _: calls.append(caller.get()),
            on_error=lambda _: calls.append(caller.get()),
        )
        await outcomes(future)

    async with producer(cluster, hooks=[Asks()]) as sender:
        for name in ("first", "second"):
            await asyncio.create_task(one(name, sender))
        cluster.a.answer = silence
        await asyncio.create_task(one("third", sender))
    assert calls == ["first", "second", "third"]
    assert seen == ["no caller"] * 3


async def test_no_callers_context_outlives_the_call(cluster: Cluster) -> None:
    class Big: ...

    caller: ContextVar[Big] = ContextVar("caller")

    async def one(sender: Producer) -> weakref.ref[Big]:
        kept = Big()
        caller.set(kept)
        await sender.send(message())
        return weakref.ref(kept)

    times = dict.fromkeys(("timeout", "connect_timeout", "request_timeout"), 0.3)  # a loop keeps timers that were cancelled
    async with producer(cluster, **times) as sender:
        seen = await asyncio.create_task(one(sender))

        def gone() -> bool:
            gc.collect()
            return seen() is None

        await until(gone)
        await sender.send(message())
