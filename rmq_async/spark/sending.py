"""The sends of one task: batches where the broker takes them, in order where order was asked for, bounded in memory, all answered.

Spark's thread hands rows over; everything else is on the worker's loop. A batch is one task of the loop. Batches for one queue form
a chain; others run side by side. ``send`` waits while ``IN_FLIGHT_BYTES`` are unanswered, so a slow broker slows the query instead
of filling the memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Final

from rmq_protocol.message import Message, MessageQueue

from ..client.text import printable
from ..errors import InvalidMessageError, RequestTimeoutError, RocketMQError
from ..producer import Producer
from ..producer.selectors import select_by_hash
from ..results import SendResult, SendStatus
from .options import WriteOptions
from .positions import key_of
from .rows import Row
from .worker import Worker

__all__ = ["Sending"]

logger = logging.getLogger(__name__)

IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
AT_ONCE: Final = 64
"""Requests of one task under way."""
SYSTEM_BYTES: Final = 300
"""Room left in a batch for what is encoded beside body and properties of a message."""


class Sending:
    """``rows``, ``bytes``, ``retried``: of what was acknowledged."""

    def __init__(self, worker: Worker, producer: Producer, options: WriteOptions) -> None:
        self.rows = 0
        self.bytes = 0
        self.retried = 0
        self._worker = worker
        self._producer = producer
        self._options = options
        self._started = monotonic()
        self._handed = 0
        self._pending = 0
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._failure: BaseException | None = None

    def send(self, rows: list[Row]) -> None:
        """Hands rows over; raises what an earlier one failed with."""
        if self._options.rate is not None:
            for start in range(0, len(rows), step := max(1, min(len(rows), int(self._options.rate // 4) or 1))):
                part = rows[start : start + step]
                self._worker.run(self._dispatch(part))
                self._handed += len(part)
                sleep(max(0.0, self._started + self._handed / self._options.rate - monotonic()))
        else:
            self._worker.run(self._dispatch(rows))

    def finish(self) -> None:
        """Returns when everything is answered and acknowledged; raises the first failure."""
        self._worker.run(self._drain())

    def close(self) -> None:
        """Ends what is still under way after a failure."""
        self._worker.run(self._cancel())

    # -- on the loop

    async def _dispatch(self, rows: list[Row]) -> None:
        free: dict[str, list[Message]] = {}
        ordered: dict[MessageQueue, list[Message]] = {}
        for row in rows:
            if row.queue is not None:
                ordered.setdefault(row.queue, []).append(row.message)
            elif row.key is not None:
                ordered.setdefault(await self._queue_of(row), []).append(row.message)
            else:
                free.setdefault(row.message.topic, []).append(row.message)
        for queue, messages in ordered.items():
            for unit in self._units(messages):
                await self._start(unit, queue)
        for messages in free.values():
            for unit in self._units(messages):
                await self._start(unit, None)
        self._check()

    async def _queue_of(self, row: Row) -> MessageQueue:
        topic = row.message.topic
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = await self._producer.fetch_publish_queues(topic)
        return select_by_hash(queues, row.message, row.key)

    def _units(self, messages: list[Message]) -> Iterable[list[Message]]:
        limit = self._options.batch_bytes
        unit: list[Message] = []
        used = 0
        for message in messages:
            size = (
                len(message.body)
                + SYSTEM_BYTES
                + sum(len(name) + 4 * len(value) for name, value in (message.properties or {}).items())
            )
            single = size > limit or message.delay_level or message.delay is not None or message.deliver_at is not None
            if unit and (single or used + size > limit):
                yield unit
                unit, used = [], 0
            if single:
                yield [message]
                continue
            unit.append(message)
            used += size
        if unit:
            yield unit

    async def _start(self, unit: list[Message], queue: MessageQueue | None) -> None:
        self._check()
        size = sum(len(message.body) for message in unit)
        while self._running and (self._pending + size > IN_FLIGHT_BYTES or len(self._running) >= AT_ONCE):
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            self._check()
        self._pending += size
        before = self._last.get(queue) if queue is not None else None
        task = asyncio.get_running_loop().create_task(self._one(unit, size, queue, before), name="rmq_async spark send")
        if queue is not None:
            self._last[queue] = task
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _one(self, unit: list[Message], size: int, queue: MessageQueue | None, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            if self._failure is not None:
                return
            results = await self._confirmed(unit, queue)
            self.rows += len(unit)
            self.bytes += size
            self.retried += sum(result.attempts > 1 for result in results)
        except (RocketMQError, TypeError, ValueError) as error:
            self._failure = self._failure or error
        finally:
            self._pending -= size

    async def _confirmed(self, unit: list[Message], queue: MessageQueue | None) -> Sequence[SendResult]:
        deadline = monotonic() + self._options.timeout
        rest = 0.05
        while True:
            left = max(deadline - monotonic(), 0.001)
            if len(unit) == 1:
                results: Sequence[SendResult] = (await self._producer.send(unit[0], queue=queue, timeout=left),)
            else:
                results = (await self._producer.send_batch(unit, queue=queue, timeout=left)).results
            status = results[0].status
            if status is SendStatus.SEND_OK or not self._options.confirmed_only:
                return results
            if monotonic() + rest > deadline:
                raise RequestTimeoutError(
                    f"{key_of(results[0].queue)} stored a row and answered {status.value} for {self._options.timeout:.3g} s "
                    "(option requireStatus=stored takes that)",
                    maybe_stored=True,
                    broker=results[0].queue.broker_name,
                )
            logger.info("sent again, the broker answered %s: %s", status.value, printable(key_of(results[0].queue)))
            await asyncio.sleep(rest)
            rest = min(rest * 2, 1.0)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _drain(self) -> None:
        while self._running:
            await asyncio.wait(self._running)
        self._check()

    async def _cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        with suppress(asyncio.CancelledError, InvalidMessageError):
            await asyncio.gather(*running, return_exceptions=True)
