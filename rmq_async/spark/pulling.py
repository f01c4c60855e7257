"""Offsets [start, end) of queues, pulled by a task: several pulls under way at once, the answers in order.

A stock broker gives 32 messages a pull (8 from disk), so one pull at a time is mostly waiting. A range is cut into chunks of what
one pull gives; several chunks are pulled at once and delivered in their order, whatever the queue they are of. Pulling by offset
needs no state on the broker, so a chunk can be pulled from anywhere, and again. With a tag filter the broker skips ahead by itself,
as far as it likes: then a chunk is of many pulls, and its answers are delivered as they come.

An answer must hold every offset from the one asked for to the one where it says to go on: a broker that deletes leaves out what is
gone, without a word. Spark's thread counts what an answer holds, and looks closer where that is not right; what tags leave out is
checked on the loop, with one pull for each chunk (``consumer.continuity``).

Pulls run on the worker's loop, which takes answers as they are; Spark's thread reads their records straight into columns while the
next answers come. Answers that nobody has taken yet are bounded by their bytes: the first chunk may always go on, the others wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rmq_protocol.columns import QUEUE_OFFSET, StoredColumns, read_columns
from rmq_protocol.command import RemotingCommand
from rmq_protocol.continuity import first_queue_offset, missing_offsets, ranges_text, without_ranges
from rmq_protocol.errors import CorruptMessageError
from rmq_protocol.message import MessageQueue

from ..client import ClientInstance
from ..client.masters import has_master
from ..client.text import printable
from ..consumer.continuity import PassedOver, deleted_among
from ..consumer.pulling import PulledBody, pull_body
from ..errors import BrokerNotFoundError, OffsetRangeError, RequestTimeoutError, RocketMQError
from ..results import PullStatus
from .arrow import Rows
from .options import ReadOptions
from .patience import Patience
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
ILLEGAL_PATIENCE: Final = 2.0
"""Seconds to wait at an offset that the broker does not know yet: a stored message is readable a moment later."""
DELETED: Final = "messages were deleted before they were read"


class _Answer(NamedTuple):
    """``first``, ``end``: the offsets that are wanted of it. ``whole``: the range they are of."""

    whole: Range
    first: int
    end: int
    pulled: PulledBody

    @property
    def queue(self) -> MessageQueue:
        return self.whole.queue

    @property
    def complete_to(self) -> int:
        """Before which offset it says that it holds everything wanted."""
        return min(self.pulled.next_offset, self.end)


class _Chunk:
    """A part of a range: what has come of it. ``offset``: of the next pull. ``passed``: what tags left out, to be checked.
    ``odd_at``: where another message was in the place of the one asked for."""

    __slots__ = ("answers", "end", "odd_at", "offset", "passed", "task", "whole")

    def __init__(self, whole: Range, offset: int, end: int) -> None:
        self.whole = whole
        self.offset = offset
        self.end = end
        self.answers: list[_Answer] = []
        self.passed = PassedOver()
        self.odd_at = -2
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
        self._reported: dict[MessageQueue, tuple[range, ...]] = {}
        """The lost offsets that were logged last."""

    def batches(self) -> Iterator[Rows]:
        """What has come, in order, as long as there is more. Raises what a pull raises when waiting did not help."""
        try:
            rows = Rows(self._options.columns, self._instance.names.shown)
            for answer in self._answers():
                position: int | None = 0
                held = 0
                while position is not None:
                    before = len(rows)
                    position = self._read(answer, position, rows)
                    held += len(rows) - before
                    if rows.full:
                        yield rows
                        rows = Rows(self._options.columns, self._instance.names.shown)
                if held != answer.complete_to - answer.first and not self._filtered:
                    self._compare(answer)
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
            self._instance.names.wire_queue(answer.queue),
            tags=self._options.tags,
            offsets=(answer.first, answer.complete_to),
            offset_delta=pulled.offset_delta,
            max_decompressed_size=self._max_decompressed,
            position=position,
            only_queue=True,
        )
        rows.came(answer.queue)
        for error in found.corrupt:
            error.broker, error.address = answer.queue.broker_name, pulled.address
            self._corrupt(error)
        return found.resume

    def _compare(self, answer: _Answer) -> None:
        """What the answer should hold and does not: a loss, unless the topic is of a kind that has gaps."""
        pulled = answer.pulled
        queue = self._instance.names.wire_queue(answer.queue)
        offsets: set[int] = set()
        corrupt: list[CorruptMessageError] = []
        position: int | None = 0
        while position is not None:
            held = StoredColumns(topics=False, bodies=False, properties=False)
            found = read_columns(
                pulled.body,
                held,
                queue,
                offsets=(answer.first, answer.complete_to),
                offset_delta=pulled.offset_delta,
                max_decompressed_size=self._max_decompressed,
                position=position,
                only_queue=True,
            )
            offsets.update(held.int64(QUEUE_OFFSET))
            corrupt += found.corrupt
            position = found.resume
        missing = missing_offsets(answer.first, answer.complete_to, offsets, corrupt)
        if missing and (lost := self._worker.run(self._patient_losses(answer.whole, missing, pulled))):
            self._lost(answer.whole, DELETED, (answer.first, answer.end), (lost[-1].stop, pulled.max_offset), lost)

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
        patience = Patience(self._options.pull_timeout)
        while chunk.offset < chunk.end or chunk.passed:
            if self.waiting >= WAITING_BYTES:
                await self._turn(chunk)
                patience.renew()
            try:
                if chunk.passed.is_due or chunk.offset >= chunk.end:
                    await self._check(chunk)
                    continue
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
                if await self._take(chunk, pulled):
                    patience.renew()
                    continue
                if await self._nothing(chunk, pulled, patience.waited):
                    return
                await patience.rest()
            except RocketMQError as error:
                await patience.rest(error)

    async def _turn(self, chunk: _Chunk) -> None:
        """Waits until Spark's thread has taken something, unless it is this chunk that it waits for."""
        while self.waiting >= WAITING_BYTES and (chunk is not self._ahead[0] or chunk.answers):
            self._taken.clear()
            await self._taken.wait()

    async def _take(self, chunk: _Chunk, pulled: PulledBody) -> bool:
        """Keeps what is in the chunk and moves on; whether there was anything to do so."""
        start, whole = chunk.offset, chunk.whole
        if pulled.status is PullStatus.OFFSET_ILLEGAL:
            return await self._jump(chunk, pulled)
        found = pulled.status is PullStatus.FOUND
        after = pulled.next_offset if found else min(pulled.next_offset, pulled.max_offset)
        if after <= start:
            return False
        begins = after
        if found:
            queue = self._instance.names.wire_queue(whole.queue)
            first = first_queue_offset(pulled.body, queue, start, pulled.offset_delta)
            if first is not None:
                begins = first
            else:  # the message asked for is gone, and something else in its place; those behind it are asked for again
                begins = after = after if chunk.odd_at == start - 1 else start + 1
                chunk.odd_at, found = start, False
        if self._filtered:
            chunk.passed.add(start, min(begins, chunk.end))
        elif begins > start:
            missing = range(start, min(begins, whole.end))
            if lost := await self._losses(whole, (missing,), pulled):
                self._lost(whole, DELETED, (start, chunk.end), (lost[-1].stop, pulled.max_offset), lost)
        chunk.offset = after
        if found:
            self._adapt(min(after, chunk.end) - start, chunk.end - start, len(pulled.body))
            chunk.answers.append(_Answer(whole, start, chunk.end, pulled))
            self.waiting += len(pulled.body)
            self._news.set()
        return True

    async def _jump(self, chunk: _Chunk, pulled: PulledBody) -> bool:
        """To the first offset there is, where the next one is below it."""
        start, whole = chunk.offset, chunk.whole
        if start >= pulled.min_offset:
            return False
        await self._believe(whole)
        lost = (range(start, min(pulled.min_offset, whole.end)),)
        self._lost(whole, DELETED, (start, chunk.end), (pulled.min_offset, pulled.max_offset), lost)
        chunk.offset = pulled.min_offset
        return True

    async def _check(self, chunk: _Chunk) -> None:
        """Whether what tags left out was there."""
        whole, passed = chunk.whole, chunk.passed
        queue = self._instance.names.wire_queue(whole.queue)
        lost, high = await deleted_among(
            self._instance, self._group, queue, passed.ranges, timeout=self._timeout, calls=self._calls
        )
        if lost:
            await self._believe(whole)
            self._lost(whole, DELETED, (passed.ranges[0].start, chunk.end), (lost[-1].stop, high), lost)
        passed.clear()

    async def _losses(self, whole: Range, missing: tuple[range, ...], pulled: PulledBody) -> tuple[range, ...]:
        """What of ``missing`` was deleted; the rest never was there."""
        queue = self._instance.names.wire_queue(whole.queue)
        static = pulled.offset_delta is not None
        lost = await self._instance.gaps.losses(self._instance, queue, missing, static=static, calls=self._calls)
        if lost:
            await self._believe(whole)
        return lost

    async def _patient_losses(self, whole: Range, missing: tuple[range, ...], pulled: PulledBody) -> tuple[range, ...]:
        patience = Patience(self._options.pull_timeout)
        while True:
            try:
                return await self._losses(whole, missing, pulled)
            except RocketMQError as error:
                await patience.rest(error)

    async def _believe(self, whole: Range) -> None:
        """Raises BrokerNotFoundError while there is no master: what a replica does not hold may be there all the same."""
        if not await has_master(self._instance, self._instance.names.wire_queue(whole.queue)):
            raise BrokerNotFoundError(
                f"a replica does not hold all offsets of {key_of(whole.queue)} from {whole.start} to {whole.end}, "
                "and the master is away (option pullTimeoutMs: how long it is waited for)",
                broker=whole.broker,
            )

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

    async def _nothing(self, chunk: _Chunk, pulled: PulledBody, waited: float) -> bool:
        """Nothing more came for ``waited`` seconds; True to go on without the rest of the chunk."""
        whole, there = chunk.whole, (pulled.min_offset, pulled.max_offset)
        if pulled.status is PullStatus.OFFSET_ILLEGAL and waited > ILLEGAL_PATIENCE:
            await self._believe(whole)
            self._lost(whole, "the end is beyond the last message", (chunk.offset, chunk.end), there)
            return True
        if waited > self._options.pull_timeout:
            raise RequestTimeoutError(
                f"{key_of(whole.queue)} gave nothing at offset {chunk.offset} for {waited:.3g} s, "
                f"{chunk.end} was to be reached (option pullTimeoutMs)",
                broker=whole.broker,
            )
        return False

    def _lost(
        self, whole: Range, why: str, wanted: tuple[int, int], there: tuple[int, int], lost: tuple[range, ...] = ()
    ) -> None:
        """``lost``: offsets of the range, where they are known. Each is logged once."""
        if lost:
            why = f"{why} ({ranges_text(lost)})"
        loss = Loss(whole.queue, why, wanted, there)
        if self._options.fail_on_data_loss:
            raise OffsetRangeError(
                f"data is lost: {loss}; with failOnDataLoss=false the query goes on with what there is",
                min_offset=there[0],
                max_offset=there[1],
                lost=lost,
                broker=whole.broker,
            )
        if not lost or without_ranges(lost, self._reported.get(whole.queue, ())):
            self._reported[whole.queue] = lost
            logger.warning("data is lost, the query goes on: %s", loss)

    def _corrupt(self, error: CorruptMessageError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("a damaged message is left out, the query goes on: %s", printable(error))


async def _instance_of(reader: SparkReader) -> ClientInstance:
    return reader.instance
