"""Sends the rows of one task with bounded memory. Rows are sent in batches if batches are allowed for them, and in order if
they name a queue or a sharding key.

Spark's thread passes blocks of rows, and everything else runs on the worker's loop. A request (a batch or a single row) is one
asyncio task. Requests for a queue that rows name or that keys determine form a chain: each request begins when the previous
request, including its retries, has ended. All other requests run concurrently. ``send`` waits while about ``IN_FLIGHT_BYTES``
are unacknowledged, so a slow broker slows the query down instead of filling the memory.

The producer retries on other brokers and on the same broker. If that fails and the error may be temporary, the request waits
and is sent again unchanged until ``sendTimeoutMs`` have passed (unless ``sendRetries`` is 0), so that the restart of a broker
only delays a write. If rows name a queue that does not exist, and a new response of a name server confirms that, the request
does not wait. If rows name a broker that is missing from all routes, it waits, but only for ``ABSENT_PATIENCE`` if no earlier
send used the broker. The first failure ends the task.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate
from time import monotonic
from typing import Final, TypeVar

from rmq_protocol.message import MessageQueue

from .. import errors
from .._backoff import Backoff
from .._text import printable
from ..producer import PreparedSend, Producer, compress_prepared, prepare, queues_instead, send_prepared
from ..reading import may_pass
from ..results import BatchSendResult, SendResult, SendStatus
from .options import WriteOptions
from .positions import key_of, named_queues
from .rows import Block, Part
from .worker import Worker

# The requests of one task of the sink. A request has several rows of one topic as a batch, or a single row, and is encoded
# once.


def cuts(sizes: Sequence[int], limit: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows as start and exclusive end.

    A run has at most ``most`` rows and ``limit`` bytes. A larger row forms a run alone.
    """
    ends = list(accumulate(sizes, initial=0))
    start, count = 0, len(sizes)
    while start < count:
        end = min(max(bisect_right(ends, ends[start] + limit) - 1, start + 1), start + most)
        yield start, end
        start = end


def sink_request(producer: Producer, block: Block, part: Part, start: int, end: int) -> PreparedSend:
    """Encode the rows of ``part`` from ``start`` to ``end`` under new unique ids. Call this on the loop of the producer."""
    rows = part.rows[start:end]
    if isinstance(rows, range):
        chosen = slice(rows.start, rows.stop)
        bodies, texts = block.bodies[chosen], block.texts[chosen]
        flags = None if block.flags is None else block.flags[chosen]
    else:
        bodies, texts = [block.bodies[row] for row in rows], [block.texts[row] for row in rows]
        flags = None if block.flags is None else [block.flags[row] for row in rows]
    return prepare(producer, part.topic, bodies, texts, flags, part.queue)


logger = logging.getLogger(__name__)

T = TypeVar("T")

IN_FLIGHT_BYTES: Final = 16 * 1024 * 1024
AT_ONCE: Final = 64
"""Maximum number of concurrent requests of one task."""
FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
ABSENT_PATIENCE: Final = 10.0
"""Seconds to wait for a broker that rows name and that is missing from all routes. A broker that restarts is missing from them
for some seconds.
"""
PACES: Final = 8
"""Number of parts into which a rate divides a second. A request has at most the rows of one part, but at least one row. The
unused time of one part may be saved up.
"""


class Sending:
    """Sends the rows of one partition.

    Args:
        topic_known: Whether the topic existed when the write was planned, or earlier tasks may have sent to it. If true, a send
            waits for the topic while no name server knows it, because name servers forget the topics of brokers that are down.
        queues_known: Whether earlier tasks may have sent to the queues that the rows name. If true, a send waits for the brokers
            of these queues in the same way.

    Attributes:
        rows: Number of acknowledged rows.
        bytes: Total size of the bodies of acknowledged rows.
        retried: Number of acknowledged rows that took more than one attempt.
    """

    def __init__(
        self,
        worker: Worker,
        producer: Producer,
        options: WriteOptions,
        *,
        topic_known: bool = False,
        queues_known: bool = False,
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self.retried = 0
        self._worker = worker
        self._producer = producer
        self._options = options
        self._topic_known = topic_known
        self._queues_known = queues_known
        self._most = 1 << 30 if options.rate is None else max(1, int(options.rate / PACES))
        self._due = monotonic()
        """Time at which the rate allows the next rows."""
        self._handed = 0
        self._pending = 0
        self._running: set[asyncio.Task[None]] = set()
        self._last: dict[MessageQueue, asyncio.Task[None]] = {}
        self._queues: dict[str, Sequence[MessageQueue]] = {}
        self._failure: BaseException | None = None

    def send(self, block: Block) -> None:
        """Pass rows to the loop, and wait until memory and rate let their requests begin.

        Raise the error of an earlier send, or of a look-up of a topic's queues.
        """
        self._worker.run(self._dispatch(block))

    def finish(self) -> None:
        """Wait until all sends have ended. Raise the first failure, or RocketMQError if fewer rows were acknowledged than were
        passed to ``send``.
        """
        self._worker.run(self._drain())

    def close(self) -> None:
        """Cancel the sends in flight. After ``finish``, no send is in flight."""
        self._worker.run(self._cancel())

    # -- on the loop

    async def _dispatch(self, block: Block) -> None:
        self._handed += len(block)
        for topic in block.targets.keyed_topics() - self._queues.keys():
            self._queues[topic] = await self._queues_of(topic)
        for part in block.parts(self._queues):
            sizes = block.sizes if len(part.rows) == len(block) else [block.sizes[row] for row in part.rows]
            limit = 0 if part.singly else self._options.batch_bytes
            for start, end in cuts(sizes, limit, self._most):
                if self._options.rate is not None:
                    await self._pace(end - start)
                await self._begin(sink_request(self._producer, block, part, start, end))
        self._check()

    async def _queues_of(self, topic: str) -> Sequence[MessageQueue]:
        """Request the queues of a topic. The task keeps the queues, so that a key keeps its queue."""
        deadline = monotonic() + self._options.timeout
        return await self._patiently(lambda _: self._producer.fetch_publish_queues(topic), deadline)

    async def _pace(self, rows: int) -> None:
        """Wait until the rate allows ``rows`` more."""
        rate = self._options.rate
        assert rate is not None
        while (left := self._due - monotonic()) > 0:
            await asyncio.sleep(min(left, 1.0))
            self._check()
        self._due = max(self._due, monotonic() - 1 / PACES) + rows / rate

    async def _begin(self, request: PreparedSend) -> None:
        self._check()
        while self._running and (self._pending + request.held > IN_FLIGHT_BYTES or len(self._running) >= AT_ONCE):
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            self._check()
        self._pending += request.held
        before = self._last.get(request.queue) if request.queue is not None else None
        task = asyncio.get_running_loop().create_task(self._one(request, before), name="rmq_async spark send")
        if request.queue is not None:
            self._last[request.queue] = task
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.sleep(0)  # lets the request be written while the next one is encoded

    async def _one(self, request: PreparedSend, before: asyncio.Task[None] | None) -> None:
        try:
            if before is not None:
                await asyncio.wait((before,))
            if self._failure is not None:
                return
            again = await self._confirmed(await compress_prepared(self._producer, request, self._options.timeout))
            self.rows += request.messages
            self.bytes += request.bytes
            if again:
                self.retried += request.messages
        except BaseException as error:  # after any error, it is unknown whether these rows are stored
            self._failure = self._failure or error
            if not isinstance(error, Exception):
                raise
        finally:
            self._pending -= request.held

    async def _confirmed(self, request: PreparedSend) -> bool:
        """Send a request, and repeat it until a broker answers with a status that ``requireStatus`` accepts.

        Return whether the send took more than one attempt.
        """
        deadline = monotonic() + self._options.timeout
        backoff = Backoff(FIRST_REST, LAST_REST)
        sends = 0

        def send(left: float) -> Awaitable[SendResult | BatchSendResult]:
            nonlocal sends
            sends += 1
            return send_prepared(self._producer, request, left)

        while True:
            try:
                result = await self._patiently(send, deadline, request.queue)
            except errors.RequestTimeoutError as error:
                topic, seconds = request.outgoing.topic, f"{self._options.timeout:.3g} s"
                text = f"topic {topic}: {request.messages} rows were not confirmed within {seconds}"
                raise errors.RequestTimeoutError(
                    f"{text} (option sendTimeoutMs); check the brokers, or raise the option: {error}",
                    maybe_stored=error.maybe_stored,
                    broker=error.broker,
                    address=error.address,
                ) from error
            if result.status is SendStatus.SEND_OK or not self._options.confirmed_only:
                return sends > 1 or result.attempts > 1
            rest = backoff.next()
            if monotonic() + rest > deadline or not self._options.retries:
                until = f"until {self._options.timeout:.3g} s had passed (option sendTimeoutMs)"
                until = until if self._options.retries else "at the only attempt (option sendRetries)"
                raise errors.RequestTimeoutError(
                    f"{key_of(result.queue)} stored {request.messages} rows and answered {result.status.value} {until}; "
                    "requireStatus=stored accepts that",
                    maybe_stored=True,
                    broker=result.queue.broker_name,
                )
            logger.info("sent again, %s answered %s", printable(key_of(result.queue)), result.status.value)
            await asyncio.sleep(rest)

    async def _patiently(
        self, request: Callable[[float], Awaitable[T]], deadline: float, queue: MessageQueue | None = None
    ) -> T:
        """Return the result of ``request(seconds left)``. Repeat the request while it may succeed later and there is time left.

        Args:
            queue: The only queue to which the request may go.
        """
        backoff = Backoff(FIRST_REST, LAST_REST)
        began = monotonic()
        while True:
            left = deadline - monotonic()
            try:
                return await request(max(left, 0.001))
            except errors.RocketMQError as error:
                if queue is not None and isinstance(_newest(error), errors.QueueNotExistError | errors.BrokerNotFoundError):
                    await self._check_queue(queue, error, monotonic() - began)
                rest = backoff.next()
                if not self._options.retries or not self._worth_waiting(error) or monotonic() + rest > deadline:
                    raise
                logger.info("sent again in %.3g s: %s", rest, printable(error))
            await asyncio.sleep(rest)

    async def _check_queue(self, queue: MessageQueue, error: errors.RocketMQError, waited: float) -> None:
        """Raise BrokerNotFoundError, caused by ``error``, if the queue does not exist.

        Args:
            waited: Seconds since the first try.
        """
        returning = self._queues_known or waited < ABSENT_PATIENCE
        try:
            timeout = self._producer.client_config.request_timeout
            others = await queues_instead(self._producer, queue, timeout, returning=returning)
        except errors.RocketMQError as failure:
            logger.debug("whether %s exists is not known: %s", printable(key_of(queue)), printable(failure))
            return
        if others is not None:
            choices = printable(named_queues(others))
            raise errors.BrokerNotFoundError(
                f"there is no queue {printable(key_of(queue))} to write to: "
                + (f"columns brokerName and queueId must name one of {choices}" if choices else "its topic has no queues now"),
                broker=queue.broker_name,
            ) from error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _drain(self) -> None:
        while self._running:
            await asyncio.wait(self._running)
        self._check()
        if self.rows != self._handed:
            raise errors.RocketMQError(
                f"{self._handed} rows were handed over and {self.rows} of them acknowledged; run the write again"
            )

    async def _cancel(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _worth_waiting(self, error: errors.RocketMQError) -> bool:
        """Return whether the same request may succeed later. Return False if a broker refused it permanently, and for a missing
        topic unless ``topic_known`` is set.
        """
        last = _newest(error)
        if isinstance(last, errors.TopicNotFoundError):
            return self._topic_known
        if isinstance(last, errors.BrokerError) and last.backs_off:
            return True
        return isinstance(last, errors.RocketMQError) and may_pass(last)


def _newest(error: errors.RocketMQError) -> BaseException | None:
    """Return the error of the last attempt of a send."""
    return error.__cause__ if isinstance(error, errors.SendError) else error
