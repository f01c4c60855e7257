"""Offsets [start, end) of queues, pulled by a task: several pulls under way at once, the answers in order.

A stock broker gives 32 messages a pull (8 from disk), so one pull at a time is mostly waiting. A range is cut into chunks of what
one pull gives; several chunks are pulled at once and delivered in their order, whatever the queue they are of. Pulling by offset
needs no state on the broker, so a chunk can be pulled from anywhere, and again. With a tag filter the broker skips ahead by itself,
as far as it likes: then a chunk is of many pulls, and its answers are delivered as they come.

Pulls run on the worker's loop, which takes answers as they are; Spark's thread reads their records straight into columns while the
next answers come. Answers that nobody has taken yet are bounded by their bytes: the first chunk may always go on, the others wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple

from rmq_protocol.columns import read_columns
from rmq_protocol.command import RemotingCommand
from rmq_protocol.errors import CorruptMessageError
from rmq_protocol.message import MessageQueue

from ..client import ClientInstance
from ..client.text import printable
from ..consumer.pulling import PulledBody, pull_body
from ..errors import OffsetRangeError, RequestTimeoutError, RocketMQError, TopicNotFoundError
from ..results import PullStatus
from .arrow import Rows
from .cluster import may_pass
from .options import ReadOptions
from .planning import Loss, Range
from .positions import key_of
from .worker import SparkReader, Worker

__all__ = ["Puller"]

logger = logging.getLogger(__name__)

CHUNKS_AHEAD: Final = (4, 16)
"""Fewest and most; in between so many that their answers take some ``AHEAD_BYTES``."""
AHEAD_BYTES: Final = 2 * 1024 * 1024
WAITING_BYTES: Final = 8 * 1024 * 1024
"""Bytes of answers that wait for Spark's thread from which on only the first chunk pulls."""
PORTION: Final = 6
PORTION_BYTES: Final = 512 * 1024
"""Answers, and their bytes, that make it worth while to wake Spark's thread."""
PULLS_PER_CHUNK: Final = 64
"""Where tags are filtered: a chunk of so many pulls without a gap."""
FULL_ANSWERS: Final = 32
"""After so many in a row the broker is asked for more at a time."""
FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
ILLEGAL_PATIENCE: Final = 2.0
"""Seconds to wait at an offset that the broker does not know yet: a stored message is readable a moment later."""


class _Answer(NamedTuple):
    """``first``, ``end``: the offsets that are wanted of it."""

    queue: MessageQueue
    first: int
    end: int
    pulled: PulledBody


class _Chunk:
    """A part of a range: what has come of it. ``offset``: of the next pull."""

    __slots__ = ("answers", "end", "offset", "task", "whole")

    def __init__(self, whole: Range, offset: int, end: int) -> None:
        self.whole = whole
        self.offset = offset
        self.end = end
        self.answers: list[_Answer] = []
        self.task: asyncio.Task[None] | None = None


class Puller:
    """One task's reading of ``ranges``. ``waiting``: bytes of answers that Spark's thread has not taken."""

    def __init__(self, worker: Worker, reader: SparkReader, ranges: Sequence[Range], options: ReadOptions) -> None:
        self._worker = worker
        self._instance = instance = worker.run(_instance_of(reader))
        self._group = instance.names.wire(options.group)
        self._max_decompressed = instance.config.max_decompressed_size
        self._timeout = instance.config.request_timeout
        self._options = options
        self._filtered = options.tags != "*"
        self._size = options.pull_size
        self._full_answers = 0
        self._answer_bytes = 0.0
        self._left = deque(ranges)
        """What no chunk was made of yet."""
        self._ahead: deque[_Chunk] = deque()
        self.waiting = 0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._calls: set[asyncio.Future[RemotingCommand]] = set()

    def batches(self) -> Iterator[Rows]:
        """What has come, in order, as long as there is more. Raises what a pull raises when waiting did not help."""
        try:
            rows = Rows(self._options.columns, self._instance.names.shown)
            for answer in self._answers():
                position: int | None = 0
                while position is not None:
                    position = self._read(answer, position, rows)
                    if rows.full:
                        yield rows
                        rows = Rows(self._options.columns, self._instance.names.shown)
            if len(rows):
                yield rows
        finally:
            self._worker.start(self._close())

    # -- in Spark's thread

    def _answers(self) -> Iterator[_Answer]:
        while (answers := self._worker.run(self._next())) is not None:
            yield from answers

    def _read(self, answer: _Answer, position: int, rows: Rows) -> int | None:
        """Adds what the answer holds from a byte on; where to go on, if that was not all."""
        pulled = answer.pulled
        found = read_columns(
            pulled.body,
            rows.stored,
            answer.queue,
            tags=self._options.tags,
            offsets=(answer.first, answer.end),
            offset_delta=pulled.offset_delta,
            max_decompressed_size=self._max_decompressed,
            position=position,
        )
        rows.came(answer.queue)
        for error in found.corrupt:
            error.broker, error.address = answer.queue.broker_name, pulled.address
            self._corrupt(error)
        return found.resume

    # -- on the loop

    async def _next(self) -> list[_Answer] | None:
        """What has come of the first chunk and, when that is complete, of those after it; waits for a portion of it."""
        found: list[_Answer] = []
        while True:
            self._fill()
            failed = self._collect(found)
            if not self._ahead and self._left:
                continue
            if found and (failed or not self._ahead or len(found) >= PORTION or self.waiting >= PORTION_BYTES):
                self.waiting -= sum(len(answer.pulled.body) for answer in found)
                self._taken.set()
                self._fill()
                return found
            if not self._ahead:
                return None
            self._fill()
            self._news.clear()
            await self._news.wait()

    def _collect(self, found: list[_Answer]) -> bool:
        """Takes what is complete; whether a failure is next. Raises it where there is nothing to deliver before it."""
        while self._ahead:
            chunk = self._ahead[0]
            found += chunk.answers
            chunk.answers.clear()
            assert chunk.task is not None
            if not chunk.task.done():
                return False
            if found and chunk.task.exception() is not None:
                return True
            chunk.task.result()
            self._ahead.popleft()
            self._taken.set()
        return False

    def _fill(self) -> None:
        fewest, most = CHUNKS_AHEAD
        wanted = most if not self._answer_bytes else min(max(int(AHEAD_BYTES / self._answer_bytes), fewest), most)
        while self._left and len(self._ahead) < wanted and (self.waiting < WAITING_BYTES or not self._ahead):
            whole = self._left.popleft()
            end = min(whole.end, whole.start + self._size * (PULLS_PER_CHUNK if self._filtered else 1))
            chunk = _Chunk(whole, whole.start, end)
            chunk.task = asyncio.get_running_loop().create_task(
                self._pull(chunk), name=f"rmq_async spark {key_of(whole.queue)}"
            )
            chunk.task.add_done_callback(lambda _: self._news.set())
            self._ahead.append(chunk)
            if end < whole.end:
                self._left.append(whole._replace(start=end))

    async def _close(self) -> None:
        tasks = [chunk.task for chunk in self._ahead if chunk.task is not None]
        self._ahead.clear()
        self._left.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pull(self, chunk: _Chunk) -> None:
        queue = self._instance.names.wire_queue(chunk.whole.queue)
        since = monotonic()
        rest = FIRST_REST
        while chunk.offset < chunk.end:
            if self.waiting >= WAITING_BYTES:
                await self._turn(chunk)
                since = monotonic()
            try:
                pulled = await pull_body(
                    self._instance,
                    self._group,
                    queue,
                    chunk.offset,
                    max_messages=self._options.pull_size if self._filtered else min(self._size, chunk.end - chunk.offset),
                    tags=self._options.tags,
                    suspend=0.0,
                    timeout=self._timeout,
                    calls=self._calls,
                )
                if self._take(chunk, pulled):
                    since, rest = monotonic(), FIRST_REST
                    continue
                if self._nothing(chunk, pulled, monotonic() - since):
                    return
            except RocketMQError as error:
                # What was planned was there: name servers forget the topics of brokers that are down.
                waits = may_pass(error) or isinstance(error, TopicNotFoundError)
                if isinstance(error, OffsetRangeError) or not waits or monotonic() - since > self._options.pull_timeout:
                    raise
                logger.info("pulling again in %.3g s: %s", rest, printable(error))
            await asyncio.sleep(rest)
            rest = min(rest * 2, LAST_REST)

    async def _turn(self, chunk: _Chunk) -> None:
        """Waits until Spark's thread has taken something, unless it is this chunk that it waits for."""
        while self.waiting >= WAITING_BYTES and (chunk is not self._ahead[0] or chunk.answers):
            self._taken.clear()
            await self._taken.wait()

    def _take(self, chunk: _Chunk, pulled: PulledBody) -> bool:
        """Keeps what is in the chunk and moves on; whether there was anything to do so."""
        start = chunk.offset
        if pulled.status is not PullStatus.OFFSET_ILLEGAL and pulled.next_offset > start:
            chunk.offset = pulled.next_offset
            if pulled.status is PullStatus.FOUND:
                self._adapt(min(pulled.next_offset, chunk.end) - start, chunk.end - start, len(pulled.body))
                chunk.answers.append(_Answer(chunk.whole.queue, start, chunk.end, pulled))
                self.waiting += len(pulled.body)
                self._news.set()
            return True
        if pulled.status is PullStatus.OFFSET_ILLEGAL and start < pulled.min_offset:
            self._lost(chunk, pulled, "messages were deleted before they were read")
            chunk.offset = pulled.min_offset
            return True
        return False

    def _adapt(self, given: int, left: int, size: int) -> None:
        """The next chunks are of what the broker gives at a time; now and then a larger one is tried."""
        self._answer_bytes = size if not self._answer_bytes else self._answer_bytes * 0.9 + size * 0.1
        asked = min(self._size, left)
        if given < asked:
            self._size = max(given, 1)
            self._full_answers = 0
        elif asked == self._size:
            self._full_answers += 1
            if self._full_answers >= FULL_ANSWERS:
                self._full_answers = 0
                self._size = min(self._size * 2, self._options.pull_size)

    def _nothing(self, chunk: _Chunk, pulled: PulledBody, waited: float) -> bool:
        """Nothing more came for ``waited`` seconds; True to go on without the rest of the chunk."""
        if pulled.status is PullStatus.OFFSET_ILLEGAL and waited > ILLEGAL_PATIENCE:
            self._lost(chunk, pulled, "the end is beyond the last message")
            return True
        if waited > self._options.pull_timeout:
            raise RequestTimeoutError(
                f"{key_of(chunk.whole.queue)} gave nothing at offset {chunk.offset} for {waited:.3g} s, "
                f"{chunk.end} was to be reached (option pullTimeoutMs)",
                broker=chunk.whole.broker,
            )
        return False

    def _lost(self, chunk: _Chunk, pulled: PulledBody, why: str) -> None:
        loss = Loss(chunk.whole.queue, why, (chunk.offset, chunk.end), (pulled.min_offset, pulled.max_offset))
        if self._options.fail_on_data_loss:
            raise OffsetRangeError(
                f"data is lost: {loss}; with failOnDataLoss=false the query goes on with what there is",
                min_offset=pulled.min_offset,
                max_offset=pulled.max_offset,
                broker=chunk.whole.broker,
            )
        logger.warning("data is lost, the query goes on: %s", loss)

    def _corrupt(self, error: CorruptMessageError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("a damaged message is left out, the query goes on: %s", printable(error))


async def _instance_of(reader: SparkReader) -> ClientInstance:
    return reader.instance
