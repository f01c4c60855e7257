"""Pulls ranges of offsets of queues for a task, with several pulls in flight and the responses in order.

A broker with default settings returns at most 32 messages per pull (8 from disk), so a task with one pull at a time would
mostly wait. A range is cut into chunks of the size of one pull. Several chunks, of any queues, are pulled at once and delivered
in their order. Pulling by offset needs no state on the broker, so a chunk can be pulled again. With a tag filter, the broker
skips offsets itself. A chunk then takes many pulls, and its responses are delivered as they arrive.

Pulls run on the worker's event loop, which decodes no messages. Meanwhile, Spark's thread reads the records directly into columns.

A broker leaves deleted messages out of a response without an error. Therefore, without a tag filter, Spark's thread counts the
messages of a response and looks for missing offsets if there are too few messages. The event loop checks the offsets before the
first message, and the offsets that the tag filter skipped (``reading.skipped_offsets``).

The memory for waiting responses is bounded: from ``WAITING_BYTES`` on, only the first chunk pulls, and only if none of its own
responses is waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final, NamedTuple

from rmq_protocol.columns import QUEUE_OFFSET, ColumnsRead, StoredColumns, read_columns
from rmq_protocol.command import RemotingCommand
from rmq_protocol.continuity import first_queue_offset, missing_offsets
from rmq_protocol.errors import CorruptMessageError
from rmq_protocol.message import MessageQueue

from .._backoff import Backoff
from .._ordered import OrderedSet
from .._text import printable
from ..client import ClientInstance
from ..errors import OffsetRangeError, RequestTimeoutError, RocketMQError, TopicNotFoundError
from ..reading import PulledBody, PullRequest, SkippedOffsets, deleted_among, may_pass, pull_body, start_pull
from ..results import PullStatus
from .arrow import Rows
from .losses import Losses
from .options import ReadOptions
from .planning import Range
from .positions import key_of
from .worker import SparkReader, Worker

# Lets a task wait for a queue without messages, or for a broker that does not respond.

logger = logging.getLogger(__name__)

FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0


class Patience:
    """Waits with growing pauses.

    Args:
        seconds: Time since the last ``renew`` after which ``rest`` raises the error that was passed to it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.renew()

    @property
    def waited(self) -> float:
        return monotonic() - self._since

    def renew(self) -> None:
        self._since = monotonic()
        self._rests: Backoff | None = None

    async def rest(self, error: RocketMQError | None = None) -> None:
        """Wait for the next pause. Raise ``error``, if it is given, when waiting cannot help or the time is over."""
        if self._rests is None:
            self._rests = Backoff(FIRST_REST, LAST_REST)
        rest = self._rests.next()
        if error is not None:
            # The planned topic existed, but name servers forget the topics of brokers that are down.
            passes = may_pass(error) or isinstance(error, TopicNotFoundError)
            if not passes or isinstance(error, OffsetRangeError) or self.waited > self._seconds:
                raise error
            logger.info("pulling again in %.3g s: %s", rest, printable(error))
        await asyncio.sleep(rest)


CHUNKS_AHEAD: Final = (4, 32)
"""Number of chunks in progress at once: the minimum, which also applies before the first response, and the maximum. In between,
the number is chosen so that the responses take about ``AHEAD_BYTES`` together.
"""
AHEAD_BYTES: Final = 2 * 1024 * 1024
WAITING_BYTES: Final = 8 * 1024 * 1024
"""Number of bytes of responses waiting for Spark's thread at which only the first chunk still pulls, and only if it has no
waiting response.
"""
PORTION: Final = 12
PORTION_BYTES: Final = 512 * 1024
"""Spark's thread is woken at this number of deliverable responses, or at this number of bytes of waiting responses."""
FILTERED_CHUNK: Final = 2048
"""Number of offsets of a chunk with a tag filter."""
FULL_ANSWERS: Final = 32
"""Number of pulls that returned all requested messages after which a pull requests more messages."""
ILLEGAL_PATIENCE: Final = 2.0
"""Seconds to wait at an offset that the broker does not know yet, because a stored message becomes readable a moment later."""


class _Answer(NamedTuple):
    """One response to a pull.

    Attributes:
        first: The first wanted offset of the response.
        end: The offset after the last wanted offset of the response.
        whole: The range to which these offsets belong.
    """

    whole: Range
    first: int
    end: int
    pulled: PulledBody

    @property
    def queue(self) -> MessageQueue:
        return self.whole.queue

    @property
    def complete_to(self) -> int:
        """The end of the offsets for which the response must be complete."""
        return min(self.pulled.next_offset, self.end)


class _Chunk:
    """A part of a range and its responses.

    Args:
        offset: Offset of the next pull.

    Attributes:
        skipped: Offsets that the tag filter skipped. They are checked for deleted messages later.
        odd_at: The last requested offset for which the broker returned a different message.
    """

    __slots__ = ("answers", "end", "odd_at", "offset", "skipped", "task", "whole")

    def __init__(self, whole: Range, offset: int, end: int) -> None:
        self.whole = whole
        self.offset = offset
        self.end = end
        self.answers: list[_Answer] = []
        self.skipped = SkippedOffsets()
        self.odd_at = -2
        self.task: asyncio.Task[None] | None = None


class Puller:
    """Pulls the ``ranges`` of one task.

    Attributes:
        waiting: Number of bytes of responses that Spark's thread has not taken yet.
    """

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
        """Ranges, and remaining parts of ranges, that are not in a chunk yet."""
        self._ahead: deque[_Chunk] = deque()
        self.waiting = 0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._calls: OrderedSet[asyncio.Future[RemotingCommand]] = OrderedSet()
        self._losses = Losses(instance, self._group, options, self._calls)

    def batches(self) -> Iterator[Rows]:
        """Yield the rows of the responses, in the order of each range.

        Raise the error of a pull if waiting did not help. With ``failOnDataLoss``, raise OffsetRangeError for lost offsets and
        CorruptMessageError for a damaged message.
        """
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
        """Add the records of a response from byte ``position`` on to ``rows``. Return the position for the next call, or None if
        all records are read.
        """
        found = self._columns(answer, position, rows.stored, self._options.tags)
        rows.came(answer.queue)
        for error in found.corrupt:
            error.broker, error.address = answer.queue.broker_name, answer.pulled.address
            self._corrupt(error)
        return found.resume

    def _columns(self, answer: _Answer, position: int, into: StoredColumns, tags: str) -> ColumnsRead:
        return read_columns(
            answer.pulled.body,
            into,
            self._instance.names.wire_queue(answer.queue),
            tags=tags,
            offsets=(answer.first, answer.complete_to),
            offset_delta=answer.pulled.offset_delta,
            max_decompressed_size=self._max_decompressed,
            position=position,
            only_queue=True,
        )

    def _compare(self, answer: _Answer) -> None:
        """Report the offsets that a response lacks as lost if their messages were deleted."""
        offsets: set[int] = set()
        corrupt: list[CorruptMessageError] = []
        position: int | None = 0
        while position is not None:
            held = StoredColumns(topics=False, bodies=False, properties=False)
            found = self._columns(answer, position, held, "*")
            offsets.update(held.int64(QUEUE_OFFSET))
            corrupt += found.corrupt
            position = found.resume
        missing = missing_offsets(answer.first, answer.complete_to, offsets, corrupt)
        if missing:
            self._worker.run(self._report_missing(answer, missing))

    # -- on the loop

    async def _next(self) -> list[_Answer] | None:
        """Wait for responses of the first chunk.

        Return these responses and, if the chunk is complete, the responses of the chunks after it. Return None at the end.
        """
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
        """Move the responses that can be delivered to ``found``: those of the complete chunks, and of the first incomplete one.

        Return whether a failed chunk comes next. Raise its error if there is no response to deliver before it.
        """
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
        """Start chunks, several at a time, so that their requests are written together."""
        fewest, most = CHUNKS_AHEAD
        wanted = fewest if not self._answer_bytes else min(max(int(AHEAD_BYTES / self._answer_bytes), fewest), most)
        if len(self._ahead) > wanted - max(wanted // 4, 1):
            return
        while self._left and len(self._ahead) < wanted and (self.waiting < WAITING_BYTES or not self._ahead):
            whole = self._left.popleft()
            end = min(whole.end, whole.start + (FILTERED_CHUNK if self._filtered else self._size))
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
        while chunk.offset < chunk.end or chunk.skipped:
            if self.waiting >= WAITING_BYTES:
                await self._turn(chunk)
                patience.renew()
            try:
                if chunk.skipped.is_due or chunk.offset >= chunk.end:
                    await self._check(chunk)
                    continue
                count = self._options.pull_size if self._filtered else min(self._size, chunk.end - chunk.offset)
                request = PullRequest(self._group, queue, chunk.offset, count, self._options.tags, 0.0, self._timeout)
                pending = start_pull(self._instance, request, gather=True)
                pulled = await pull_body(self._instance, request, self._calls, pending)
                if await self._take(chunk, pulled):
                    patience.renew()
                    continue
                if await self._nothing(chunk, pulled, patience.waited):
                    return
                await patience.rest()
            except RocketMQError as error:
                await patience.rest(error)

    async def _turn(self, chunk: _Chunk) -> None:
        """Wait while responses of ``WAITING_BYTES`` or more are waiting, unless the chunk is the first one and none of its
        responses is waiting.
        """
        while self.waiting >= WAITING_BYTES and (chunk is not self._ahead[0] or chunk.answers):
            self._taken.clear()
            await self._taken.wait()

    async def _take(self, chunk: _Chunk, pulled: PulledBody) -> bool:
        """Keep the response and advance the chunk. Return whether the chunk advanced."""
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
            else:  # another message is in the place of the requested one, so the messages after it are requested again
                begins = after = after if chunk.odd_at == start - 1 else start + 1
                chunk.odd_at, found = start, False
        if self._filtered:
            chunk.skipped.add(start, min(begins, chunk.end))
        elif begins > start:
            missing = range(start, min(begins, whole.end))
            if lost := await self._losses.among(whole, (missing,), pulled):
                stored, there = (pulled.min_offset, pulled.max_offset), begins if found else None
                after = max(after, await self._losses.report(whole, (start, chunk.end), lost, stored, there))
        chunk.offset = after
        if found:
            self._adapt(min(after, chunk.end) - start, chunk.end - start, len(pulled.body))
            chunk.answers.append(_Answer(whole, start, chunk.end, pulled))
            self.waiting += len(pulled.body)
            self._news.set()
        return True

    async def _jump(self, chunk: _Chunk, pulled: PulledBody) -> bool:
        """If the next offset of the chunk is below the queue's first offset, move the chunk there and report the offsets in
        between as lost. Return whether the chunk moved.
        """
        start, whole = chunk.offset, chunk.whole
        if start >= pulled.min_offset:
            return False
        await self._losses.check_master(whole)
        lost = (range(start, min(pulled.min_offset, whole.end)),)
        stored = (pulled.min_offset, pulled.max_offset)
        chunk.offset = max(stored[0], await self._losses.report(whole, (start, chunk.end), lost, stored))
        return True

    async def _check(self, chunk: _Chunk) -> None:
        """Look for deleted messages among the offsets that the tag filter skipped, and report them as lost."""
        whole, skipped = chunk.whole, chunk.skipped
        queue = self._instance.names.wire_queue(whole.queue)
        lost, high = await deleted_among(
            self._instance, self._group, queue, skipped.ranges, timeout=self._timeout, calls=self._calls
        )
        if lost:
            await self._losses.check_master(whole)
            there = None if lost[-1].stop == skipped.ranges[-1].stop else lost[-1].stop
            wanted = (skipped.ranges[0].start, chunk.end)
            chunk.offset = max(chunk.offset, await self._losses.report(whole, wanted, lost, (0, high), there))
        skipped.clear()

    async def _report_missing(self, answer: _Answer, missing: tuple[range, ...]) -> None:
        """Report those of the missing offsets of a response whose messages were deleted. Wait for a broker as pulls do."""
        whole, pulled = answer.whole, answer.pulled
        patience = Patience(self._options.pull_timeout)
        while True:
            try:
                if lost := await self._losses.among(whole, missing, pulled):
                    there = None if lost[-1].stop == answer.complete_to else lost[-1].stop
                    stored = (pulled.min_offset, pulled.max_offset)
                    await self._losses.report(whole, (answer.first, answer.end), lost, stored, there)
                return
            except RocketMQError as error:
                await patience.rest(error)

    def _adapt(self, given: int, left: int, size: int) -> None:
        """Set the size of the next chunks to the number of messages that the broker returns in one pull.

        Try a larger size at intervals.
        """
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
        """Handle ``waited`` seconds without messages. Return whether to continue without the rest of the chunk."""
        whole, there = chunk.whole, (pulled.min_offset, pulled.max_offset)
        if pulled.status is PullStatus.OFFSET_ILLEGAL and waited > ILLEGAL_PATIENCE:
            await self._losses.check_master(whole)
            self._losses.tell(whole, "the end is beyond the last message", (chunk.offset, chunk.end), there)
            return True
        if waited > self._options.pull_timeout:
            raise RequestTimeoutError(
                f"{key_of(whole.queue)} returned nothing at offset {chunk.offset} for {waited:.3g} s, although it must be read to "
                f"offset {chunk.end}; check the broker, or let tasks wait longer (option pullTimeoutMs)",
                broker=whole.broker,
            )
        return False

    def _corrupt(self, error: CorruptMessageError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("a damaged message is left out, the query continues: %s", printable(error))


async def _instance_of(reader: SparkReader) -> ClientInstance:
    return reader.instance
