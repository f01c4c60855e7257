"""What runs read: topics, and messages whose place and acknowledgement are written down."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from rmq_async import Admin, Message, MessageQueue, Producer
from rmq_async.spark.positions import key_of

from .history import Run

BATCH = 500
BATCH_BYTES = 512 * 1024
"""Of bodies: 5.5.0 answers SEND_OK to a batch that is larger than a file of its commit log, here of 1 MiB, and never stores it."""


class Feeder:
    """Fills the topics of runs; ``wait`` does a coroutine on some loop."""

    def __init__(self, wait: Callable[[Coroutine[Any, Any, Any]], Any], namesrv: str) -> None:
        self.wait = wait
        self.namesrv = namesrv
        self.serial = 0

    def make(self, topic: str, queues: int = 2) -> None:
        """Makes a topic, or gives it more queues."""

        async def make() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.create_topic(topic, queues=queues)

        self.wait(make())

    def send(self, run: Run, counts: dict[int, int], *, old: bool = False, size: int = 64) -> None:
        """``counts``: messages by queue of broker-a. ``old``: stored before the query is started."""
        self.wait(self._send(run, counts, old, size))

    async def _send(self, run: Run, counts: dict[int, int], old: bool, size: int) -> None:
        most = min(BATCH, BATCH_BYTES // size)
        async with Producer("feeds", namesrv=self.namesrv) as producer:
            for number, count in counts.items():
                queue = MessageQueue(run.topic, "broker-a", number)
                for start in range(0, count, most):
                    ids = range(self.serial, self.serial + min(most, count - start))
                    self.serial = ids.stop
                    bodies = [f"{run.topic}:{one} ".encode().ljust(size, b".") for one in ids]
                    result = await producer.send_batch([Message(run.topic, body) for body in bodies], queue=queue)
                    first = result.queue_offset
                    run.note("produced", queue=key_of(queue), first=first, count=len(ids), serial=ids.start, old=old)


def spread(rng: random.Random, low: int, high: int, queues: int = 2) -> dict[int, int]:
    return {number: rng.randint(low, high) for number in range(queues)}
