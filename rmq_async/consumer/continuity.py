"""Whether messages that a filter may have passed over were still there when it did.

A pull with tags says nothing about what it leaves out: messages with other tags, or messages that were deleted just then, for a
broker that deletes goes on as if they did not match. So it is asked afterwards, without tags, for the first offset passed over:
what is stored now was stored then, and a queue loses its oldest messages first. One small pull a second for each queue, and one at
its end.

(The oldest offset a broker reports is no witness: its minimum is corrected seconds late, and while files go its search by time
gives 0, or no answer at all; both seen on 5.5.0 and 4.9.7.)
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final

from rmq_protocol.continuity import first_queue_offset
from rmq_protocol.message import MessageQueue

from ..client import ClientInstance
from ..client.masters import has_master
from ..errors import BrokerNotFoundError, OffsetRangeError
from ..results import PullStatus
from .pulling import Calls, pull_body

__all__ = ["PassedOver", "deleted_among"]

CHECK_EVERY: Final = 1.0
"""Seconds."""
SHORT_STEP: Final = 100
"""Offsets."""


class PassedOver:
    """Offsets of one queue that pulls with tags have passed over since the last check, lowest first."""

    __slots__ = ("checked_at", "ranges")

    def __init__(self) -> None:
        self.checked_at = monotonic()
        self.ranges: list[range] = []

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def is_due(self) -> bool:
        return bool(self.ranges) and monotonic() - self.checked_at >= CHECK_EVERY

    def add(self, offset: int, first: int) -> None:
        """A pull from ``offset`` on gave its first message at ``first``, or none before that. What follows a message was there."""
        if first <= offset:
            return
        if self.ranges and self.ranges[-1].stop >= offset:
            offset = self.ranges.pop().start
        self.ranges.append(range(offset, first))

    def clear(self) -> None:
        """They have been checked."""
        self.ranges.clear()
        self.checked_at = monotonic()


async def deleted_among(
    instance: ClientInstance, group: str, queue: MessageQueue, passed: Sequence[range], *, timeout: float, calls: Calls
) -> tuple[tuple[range, ...], int]:
    """What of ``passed`` is no longer stored, and where the queue ends; it may have been deleted before it was looked at.

    ``timeout``: seconds for each request. Where a step is shorter than SHORT_STEP no pull begins once they are over: what is known
    by then is the result, so that a broker that leads from one offset to the next does not hold the reading up. Real ones lead 800
    offsets on, or to the first that is there. Raises what a pull raises, OffsetRangeError where the queue
    now ends before ``passed`` does, and BrokerNotFoundError where that is the word of a replica without a master.
    """
    at, stop = passed[0].start, passed[-1].stop
    high, static, odd, short = stop, False, False, False
    until = monotonic() + timeout
    while at < stop and not (short and monotonic() >= until):
        answer = await pull_body(
            instance, group, queue, at, max_messages=1, tags="*", suspend=0.0, timeout=timeout, calls=calls
        )
        high = answer.max_offset
        static = static or answer.offset_delta is not None
        after = answer.min_offset if answer.status is PullStatus.OFFSET_ILLEGAL else answer.next_offset
        if answer.status is PullStatus.FOUND:
            first = first_queue_offset(answer.body, queue, at, answer.offset_delta)
            if first is not None:
                at = max(first, at)
                break
            if not odd:  # only one message of a broker can have another one in its place
                at, odd = at + 1, True
                continue
        if after <= at:
            shown = instance.names.shown_queue(queue)
            if answer.max_offset < stop and await has_master(instance, queue):
                raise OffsetRangeError(
                    f"offset {stop} of {shown} is outside {answer.min_offset}..{answer.max_offset}",
                    min_offset=answer.min_offset,
                    max_offset=answer.max_offset,
                    request="PULL_MESSAGE",
                    broker=queue.broker_name,
                    address=answer.address,
                )
            raise BrokerNotFoundError(
                f"whether offset {at} of {shown} was deleted cannot be found out: the queue ends at {answer.max_offset} there",
                broker=queue.broker_name,
                address=answer.address,
            )
        short = after - at < SHORT_STEP
        at = after
    missing = tuple([range(each.start, min(each.stop, at)) for each in passed if each.start < at])
    if not missing:
        return (), high
    return await instance.gaps.losses(instance, queue, missing, static=static, calls=calls), high
