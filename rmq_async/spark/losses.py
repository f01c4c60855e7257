"""Finds and reports losses in a task: offsets that are missing from responses because their messages were deleted.

A response shows only a part of a long loss, because a broker skips about 800 deleted messages at a time, or only one if another
record is in the place of the first message of its log. The report covers the whole loss, up to the first existing message.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rmq_protocol.command import RemotingCommand
from rmq_protocol.continuity import ranges_text, without_ranges
from rmq_protocol.message import MessageQueue

from .._ordered import OrderedSet
from ..client import ClientInstance, has_master, lost_offsets
from ..errors import BrokerNotFoundError, OffsetRangeError
from ..reading import PulledBody, deleted_among
from .options import ReadOptions
from .planning import Loss, Range
from .positions import key_of

logger = logging.getLogger(__name__)

DELETED: Final = "messages were deleted before they were read"


class Losses:
    """Finds and reports the losses of one task.

    Args:
        group: The group in whose name the task pulls.
        calls: The pending requests of the task.
    """

    def __init__(
        self, instance: ClientInstance, group: str, options: ReadOptions, calls: OrderedSet[asyncio.Future[RemotingCommand]]
    ) -> None:
        self._instance = instance
        self._group = group
        self._timeout = instance.config.request_timeout
        self._fails = options.fail_on_data_loss
        self._calls = calls
        self._looking = asyncio.Lock()
        self._reported: dict[MessageQueue, tuple[range, ...]] = {}
        """The lost offsets that were last logged."""

    async def among(self, whole: Range, missing: tuple[range, ...], pulled: PulledBody) -> tuple[range, ...]:
        """Return the part of ``missing`` that was deleted."""
        queue = self._instance.names.wire_queue(whole.queue)
        static = pulled.offset_delta is not None
        lost = await lost_offsets(self._instance, queue, missing, static=static, calls=self._calls)
        if lost:
            await self.check_master(whole)
        return lost

    async def report(
        self, whole: Range, wanted: tuple[int, int], lost: tuple[range, ...], stored: tuple[int, int], there: int | None = None
    ) -> int:
        """Report a loss: ``lost`` and the lost offsets after it, up to the first existing message.

        Args:
            whole: The range that the task reads.
            wanted: First offset and end of the part that was to be read.
            stored: The minimum offset in the response (0 if it is unknown) and the maximum offset.
            there: The offset of the first existing message, if the response showed it. Otherwise, the first call for a long loss
                searches for it, and later calls for the same loss take it from the last report.

        Returns:
            The offset of the first existing message, or the end of ``whole`` if it has no such message.
        """
        async with self._looking:
            if there is None:
                lost = await self._with_those_behind(whole, lost, stored[1])
            self.tell(whole, DELETED, wanted, (max(lost[-1].stop, stored[0]), stored[1]), lost)
        return lost[-1].stop if there is None else there

    async def _with_those_behind(self, whole: Range, lost: tuple[range, ...], high: int) -> tuple[range, ...]:
        """Return ``lost`` and the lost offsets of ``whole`` that follow it without an existing message in between."""
        at, end = lost[-1].stop, min(whole.end, high)
        known = next((each.stop for each in self._reported.get(whole.queue, ()) if each.start <= at <= each.stop), None)
        if known is not None:
            return (*lost[:-1], range(lost[-1].start, min(known, whole.end)))
        if at >= end:
            return lost
        queue, behind = self._instance.names.wire_queue(whole.queue), (range(at, end),)
        more, _ = await deleted_among(self._instance, self._group, queue, behind, timeout=self._timeout, calls=self._calls)
        if not more:
            return lost
        await self.check_master(whole)
        span = (range(lost[0].start, more[-1].stop),)
        return without_ranges(span, without_ranges(span, (*lost, *more)))  # this merges adjacent ranges

    async def check_master(self, whole: Range) -> None:
        """Raise BrokerNotFoundError if there is no master now, because a master may hold messages that its replica lacks."""
        if not await has_master(self._instance, self._instance.names.wire_queue(whole.queue)):
            raise BrokerNotFoundError(
                f"a replica does not hold all offsets of {key_of(whole.queue)} from {whole.start} to {whole.end}, "
                "and its master is not available; start the master, or let tasks wait longer for it (option pullTimeoutMs)",
                broker=whole.broker,
            )

    def tell(
        self, whole: Range, why: str, wanted: tuple[int, int], there: tuple[int, int], lost: tuple[range, ...] = ()
    ) -> None:
        """Raise OffsetRangeError for a loss if losses fail the query. Otherwise, log the loss, unless it is part of the loss
        that was last logged for the queue.

        Args:
            wanted: First offset and end of the range to read.
            there: First offset and end of the range that can be read.
            lost: The lost offsets, if they are known.
        """
        if lost:
            why = f"{why} ({ranges_text(lost)})"
        loss = Loss(whole.queue, why, wanted, there)
        if self._fails:
            raise OffsetRangeError(
                f"data is lost: {loss}; with failOnDataLoss=false the query continues with the existing messages",
                min_offset=there[0],
                max_offset=there[1],
                lost=lost,
                broker=whole.broker,
            )
        if not lost or without_ranges(lost, self._reported.get(whole.queue, ())):
            self._reported[whole.queue] = lost
            logger.warning("data is lost, the query continues: %s", loss)
