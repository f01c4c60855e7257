"""Members of a group that handle messages in order, in batches or by hand, under the faults and kills of ``groups``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from random import Random
from typing import Any, Final, Literal

from rmq_async.consumer import Batch, Consumer, Retry
from rmq_async.errors import RocketMQError
from rmq_async.testing.simulation.faults import exponential
from rmq_protocol.message import Message, MessageExt

from ..cluster import Cluster
from ..group_log import GROUP, Delivery, GroupLog
from ..order_checkers import NO_ORDER
from .groups import FAILURE, Crew, decide

__all__ = ["arranged"]

KEYS: Final = 8
LONGEST_CALL: Final = 3.0
"""Seconds of a handler call at most: a message with all its attempts holds its queue for less time than the checks allow."""
STYLES: Final = ("key", "queue", "queue in batches", "batches", "by hand")


async def arranged(cluster: Cluster, until: float) -> None:
    """Runs a group whose members handle messages in order of keys or queues, in batches, or by hand."""
    await _ArrangedCrew(cluster, until).run()


class _ArrangedCrew(Crew):
    """A crew whose members all handle messages in the style that the seed draws."""

    name = "arranged"

    def __init__(self, cluster: Cluster, until: float) -> None:
        super().__init__(cluster, until)
        self.style = self.chance.choice(STYLES)
        order: dict[str, Literal["key", "queue"]] = {"key": "key", "queue": "queue", "queue in batches": "queue"}
        self.log.order = order.get(self.style)
        self.log.attempts = 4
        self.batch_size = self.chance.choice((2, 8))
        self.batch_wait = self.chance.choice((0.0, 0.5))
        if self.style == "by hand":
            self.log.in_hand = self.options["handover_timeout"]
        self.options["retry"] = Retry(limit=self.log.attempts - 1, delays=(1, 2))

    def message(self, topic: str, number: int) -> Message:
        key = self.chance.randint(0, KEYS)
        return Message(topic, b"%d" % number, keys=(() if key == 0 else NO_ORDER if key == 1 else f"key-{key}"))

    def consumer(self, chance: Random, life: int) -> Consumer:
        if self.style == "by hand":
            return Consumer(GROUP, namesrv=self.cluster.namesrv, topics=self.topics, **self.options)
        consumer = Consumer(GROUP, namesrv=self.cluster.namesrv, **self.options)
        one, many = partial(_handle, self.log, chance, life), partial(_handle_batch, self.log, chance, life)
        for topic in self.topics:
            if self.log.order is not None and self.style != "queue in batches":
                consumer.subscribe(topic, one, order=self.log.order, key=_key_of if self.log.order == "key" else None)
            else:
                consumer.subscribe(topic, many, order=self.log.order, batch_size=self.batch_size, batch_wait=self.batch_wait)
        return consumer

    def working(self, consumer: Consumer, chance: Random, life: int) -> AbstractAsyncContextManager[None]:
        if self.style != "by hand":
            return super().working(consumer, chance, life)
        return _reading(partial(_read, self.log, chance, life, consumer))


def _key_of(message: MessageExt) -> str | None:
    key = message.keys[0] if message.keys else ""
    return None if key == NO_ORDER else key


@asynccontextmanager
async def _reading(read: Any) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(read(), name="reader")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _work(log: GroupLog, chance: Random, deliveries: list[Delivery]) -> None:
    try:
        await asyncio.sleep(min(exponential(chance, 2.0 if chance.random() < 0.02 else 0.1), LONGEST_CALL))
    except asyncio.CancelledError:
        for delivery in deliveries:
            log.end(delivery, "cancelled")
        raise


async def _handle(log: GroupLog, chance: Random, life: int, message: MessageExt) -> None:
    delivery = log.begin(message, life)
    await _work(log, chance, [delivery])
    decide(log, chance, delivery)


async def _handle_batch(log: GroupLog, chance: Random, life: int, batch: Batch) -> None:
    """Handles a batch. The messages of an ordered batch succeed or fail together; each message of another batch may have its own
    mark."""
    call = len(log.deliveries)
    deliveries = [log.begin(message, life, call) for message in batch]
    await _work(log, chance, deliveries)
    failed = chance.random() < 0.04
    for message, delivery in zip(batch, deliveries, strict=True):
        drawn = 1.0 if log.order is not None else chance.random()
        if drawn < 0.01:
            batch.mark_dead_letter(message, "drawn")
        elif drawn < 0.04:
            batch.mark_retry(message, 1.0)
        how: Literal["dead", "failed", "done"] = "dead" if drawn < 0.01 else "failed" if drawn < 0.04 or failed else "done"
        log.end(delivery, how)
    if failed:
        raise ValueError(FAILURE)


async def _read(log: GroupLog, chance: Random, life: int, consumer: Consumer) -> None:
    """Reads until it is cancelled; gives some messages back, and gives others up as dead letters."""
    while True:
        with suppress(RocketMQError):
            async for message in consumer:
                delivery = log.begin(message, life)
                await _work(log, chance, [delivery])
                drawn = chance.random()
                if drawn < 0.01:
                    log.end(delivery, "dead")
                    await consumer.dead_letter(message, "drawn")
                elif drawn < 0.05:
                    log.end(delivery, "failed")
                    await consumer.retry(message, 1.0)
                else:
                    log.end(delivery, "done")
        await asyncio.sleep(0.1)
