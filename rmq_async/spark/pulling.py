"""Offsets [start, end) of queues, pulled by a task: several pulls under way at once, the answers in order.

A stock broker gives 32 messages a pull (8 from disk), so one pull at a time is mostly waiting. A range is cut into chunks of what
one pull gives; several chunks are pulled at once and delivered in their order, whatever the queue they are of. Pulling by offset
needs no state on the broker, so a chunk can be pulled from anywhere, and again. With a tag filter the broker skips ahead by itself,
as far as it likes: then a range is one chunk.

Runs on the worker's loop; Spark's thread iterates ``Puller.batches`` and makes Arrow arrays while the next answers come.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from rmq_protocol.message import MessageExt

from ..client.text import printable
from ..errors import CorruptMessageError, OffsetRangeError, RequestTimeoutError, RocketMQError
from ..results import PullResult, PullStatus
from .cluster import may_pass
from .options import ReadOptions
from .planning import Loss, Range
from .positions import key_of
from .worker import SparkReader, Worker

__all__ = ["Puller"]

logger = logging.getLogger(__name__)

CHUNKS_AHEAD: Final = 8
FIRST_REST: Final = 0.05
LAST_REST: Final = 1.0
ILLEGAL_PATIENCE: Final = 2.0
"""Seconds to wait at an offset that the broker does not know yet: a stored message is readable a moment later."""


class _Chunk:
    """A part of a range: what has come of it. ``offset``: of the next pull."""

    __slots__ = ("end", "messages", "offset", "task", "whole")

    def __init__(self, whole: Range, offset: int, end: int) -> None:
        self.whole = whole
        self.offset = offset
        self.end = end
        self.messages: list[MessageExt] = []
        self.task: asyncio.Task[None] | None = None


class Puller:
    """One task's reading of ``ranges``."""

    def __init__(self, worker: Worker, reader: SparkReader, ranges: Sequence[Range], options: ReadOptions) -> None:
        self._worker = worker
        self._reader = reader
        self._options = options
        self._size = options.pull_size
        self._left = deque(ranges)
        """What no chunk was made of yet."""
        self._ahead: deque[_Chunk] = deque()

    def batches(self) -> Iterator[list[MessageExt]]:
        """What has come, in order, as long as there is more. Raises what a pull raises when waiting did not help."""
        try:
            while (messages := self._worker.run(self._next())) is not None:
                if messages:
                    yield messages
        finally:
            self._worker.start(self._close())

    # -- on the loop

    async def _next(self) -> list[MessageExt] | None:
        self._fill()
        if not self._ahead:
            return None
        chunk = self._ahead[0]
        assert chunk.task is not None
        await chunk.task
        messages = chunk.messages
        self._ahead.popleft()
        while self._ahead and (following := self._ahead[0]).task is not None and following.task.done():
            following.task.result()
            messages += following.messages
            self._ahead.popleft()
        self._fill()
        return messages

    def _fill(self) -> None:
        while self._left and len(self._ahead) < CHUNKS_AHEAD:
            whole = self._left.popleft()
            end = whole.end if self._options.tags != "*" else min(whole.end, whole.start + self._size)
            chunk = _Chunk(whole, whole.start, end)
            chunk.task = asyncio.get_running_loop().create_task(
                self._pull(chunk), name=f"rmq_async spark {key_of(whole.queue)}"
            )
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
        since = monotonic()
        rest = FIRST_REST
        while chunk.offset < chunk.end:
            size = min(self._options.pull_size, chunk.end - chunk.offset)
            try:
                result = await self._reader.pull(chunk.whole.queue, chunk.offset, max_messages=size, tags=self._options.tags)
                if self._take(chunk, result):
                    since, rest = monotonic(), FIRST_REST
                    continue
                late = self._nothing(chunk, result, monotonic() - since)
                if late:
                    return
            except RocketMQError as error:
                if (
                    isinstance(error, OffsetRangeError)
                    or not may_pass(error)
                    or monotonic() - since > self._options.pull_timeout
                ):
                    raise
                logger.info("pulling again in %.3g s: %s", rest, printable(error))
            await asyncio.sleep(rest)
            rest = min(rest * 2, LAST_REST)

    def _take(self, chunk: _Chunk, result: PullResult) -> bool:
        """Keeps what is in the chunk and moves on; whether there was anything to do so."""
        if result.corrupt:
            self._corrupt(result.corrupt[0])
        wanted = [message for message in result.messages if chunk.offset <= message.queue_offset < chunk.end]
        chunk.messages += wanted
        if result.status is PullStatus.FOUND and len(wanted) < self._size and result.next_offset < chunk.end:
            self._size = max(len(result.messages), 1)  # what the broker gives at a time: the next chunks are of that size
        if result.status is not PullStatus.OFFSET_ILLEGAL and result.next_offset > chunk.offset:
            chunk.offset = result.next_offset
            return True
        if result.status is PullStatus.OFFSET_ILLEGAL and chunk.offset < result.min_offset:
            self._lost(chunk, result, "messages were deleted before they were read")
            chunk.offset = result.min_offset
            return True
        return False

    def _nothing(self, chunk: _Chunk, result: PullResult, waited: float) -> bool:
        """Nothing more came for ``waited`` seconds; True to go on without the rest of the chunk."""
        if result.status is PullStatus.OFFSET_ILLEGAL and waited > ILLEGAL_PATIENCE:
            self._lost(chunk, result, "the end is beyond the last message")
            return True
        if waited > self._options.pull_timeout:
            raise RequestTimeoutError(
                f"{key_of(chunk.whole.queue)} gave nothing at offset {chunk.offset} for {waited:.3g} s, "
                f"{chunk.end} was to be reached (option pullTimeoutMs)",
                broker=chunk.whole.broker,
            )
        return False

    def _lost(self, chunk: _Chunk, result: PullResult, why: str) -> None:
        loss = Loss(chunk.whole.queue, why, (chunk.offset, chunk.end), (result.min_offset, result.max_offset))
        if self._options.fail_on_data_loss:
            raise OffsetRangeError(
                f"data is lost: {loss}; with failOnDataLoss=false the query goes on with what there is",
                min_offset=result.min_offset,
                max_offset=result.max_offset,
                broker=chunk.whole.broker,
            )
        logger.warning("data is lost, the query goes on: %s", loss)

    def _corrupt(self, error: CorruptMessageError) -> None:
        if self._options.fail_on_data_loss:
            raise error
        logger.warning("a damaged message is left out, the query goes on: %s", printable(error))
