"""Sends in four modes, each written as in an application, and records the latency and the outcome of each call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Final

from rmq_async import Producer, RocketMQError, SendResult

from .messages import Key, Messages

__all__ = ["AT_ONCE", "BATCH", "BATCHES_AT_ONCE", "MODES", "Mode", "ModeRun"]

AT_ONCE: Final = 64
"""Number of coroutines of mode awaited."""
BATCH: Final = 32
BATCHES_AT_ONCE: Final = 8
"""Number of messages in a batch, and of coroutines that send batches."""


@dataclass
class ModeRun:
    """One mode under way. ``until``: value of ``perf_counter()`` after which no further message is begun.

    ``latencies``: seconds of each call that succeeded; in mode async until ``on_success``, in mode batch of each batch.
    """

    mode: str
    wanted: int
    until: float
    producer: Producer
    messages: Messages
    attempted: list[Key] = field(default_factory=list)
    acknowledged: dict[Key, SendResult] = field(default_factory=dict)
    failures: dict[Key, BaseException] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    done: int = 0
    seconds: float = 0.0

    def next_keys(self, number: int) -> list[Key]:
        """Returns the keys of the next messages and counts them as attempted; none when the time is over or all are
        attempted."""
        first = len(self.attempted)
        if perf_counter() >= self.until:
            return []
        keys = [Key(self.mode, index) for index in range(first, min(first + number, self.wanted))]
        self.attempted += keys
        return keys

    def stored(self, key: Key, result: SendResult) -> None:
        self.acknowledged[key] = result
        self.done += 1

    def failed(self, keys: Sequence[Key], error: BaseException) -> None:
        self.failures |= dict.fromkeys(keys, error)
        self.done += len(keys)


async def awaited(run: ModeRun) -> None:
    """Sends by ``result = await producer.send(message)`` in 64 coroutines."""

    async def one_after_another() -> None:
        while keys := run.next_keys(1):
            key = keys[0]
            message = run.messages.make(key)
            began = perf_counter()
            try:
                result = await run.producer.send(message)
            except RocketMQError as error:
                run.failed(keys, error)
            else:
                run.latencies.append(perf_counter() - began)
                run.stored(key, result)

    await _side_by_side(one_after_another, AT_ONCE)


async def deferred(run: ModeRun) -> None:
    """Sends by ``await producer.send_async(message, on_success=..., on_error=...)``, with as many in flight as there are
    credits."""

    def on_success(key: Key, began: float, result: SendResult) -> None:
        run.latencies.append(perf_counter() - began)
        run.stored(key, result)

    while keys := run.next_keys(1):
        key = keys[0]
        message = run.messages.make(key)
        try:
            await run.producer.send_async(
                message, on_success=partial(on_success, key, perf_counter()), on_error=partial(run.failed, keys)
            )
        except RocketMQError as error:
            run.failed(keys, error)
    await run.producer.flush()


async def oneway(run: ModeRun) -> None:
    """Sends by ``await producer.send_oneway(message)``, which returns once the frame is handed over; no broker responds."""
    while keys := run.next_keys(1):
        message = run.messages.make(keys[0])
        began = perf_counter()
        try:
            await run.producer.send_oneway(message)
        except RocketMQError as error:
            run.failed(keys, error)
        else:
            run.latencies.append(perf_counter() - began)
            run.done += 1
    await run.producer.flush()


async def batch(run: ModeRun) -> None:
    """Sends by ``result = await producer.send_batch(messages)``: 32 messages a request, 8 requests at a time."""

    async def one_after_another() -> None:
        while keys := run.next_keys(BATCH):
            messages = [run.messages.make(key) for key in keys]
            began = perf_counter()
            try:
                result = await run.producer.send_batch(messages)
            except RocketMQError as error:
                run.failed(keys, error)
            else:
                run.latencies.append(perf_counter() - began)
                for key, each in zip(keys, result.results, strict=True):
                    run.stored(key, each)

    await _side_by_side(one_after_another, BATCHES_AT_ONCE)


Mode = Callable[[ModeRun], Awaitable[None]]
MODES: Final[dict[str, Mode]] = {"awaited": awaited, "async": deferred, "oneway": oneway, "batch": batch}


async def _side_by_side(work: Callable[[], Awaitable[None]], number: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(_call(work))


async def _call(work: Callable[[], Awaitable[None]]) -> None:
    await work()
