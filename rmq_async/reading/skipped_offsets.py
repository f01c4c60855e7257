"""Checks whether the messages at offsets that a filter skipped were still stored when it skipped them."""

# The response to a pull with tags does not say why it skips an offset: the message has other tags, or it was deleted, because a
# broker treats deleted messages as if they did not match. So a pull without tags asks for the first skipped offset afterwards:
# a message that is stored now was stored when it was skipped, and a queue loses its oldest messages first. That usually takes
# one small pull a second for each queue, and one at its end.
#
# (The minimum offset that a broker reports is no substitute: it is corrected seconds late, and while files are deleted a search
# by time returns 0, or gets no response; both observed on 5.5.0 and 4.9.7.)

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_protocol.continuity import first_queue_offset
from rmq_protocol.message import MessageQueue

from .. import machine
from ..client import ClientInstance, end_in, has_master, lost_offsets, next_offset_in
from ..errors import BrokerNotFoundError, FrameTooLargeError, OffsetRangeError
from ..results import PullStatus
from .pull import Calls, PulledBody, PullRequest, pull_body

CHECK_EVERY: Final = 1.0
"""Seconds between two checks of a queue, at least."""
SHORT_STEP: Final = 100
"""Number of offsets below which a step to the next message counts as short."""


class SkippedOffsets:
    """Offsets of one queue that pulls with tags have skipped since the last check, lowest first."""

    __slots__ = ("checked_at", "ranges")

    def __init__(self) -> None:
        self.checked_at = machine.monotonic()
        self.ranges: list[range] = []

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def is_due(self) -> bool:
        return bool(self.ranges) and machine.monotonic() - self.checked_at >= CHECK_EVERY

    def add(self, offset: int, first: int) -> None:
        """Add the offsets from ``offset``, where a pull began, up to ``first``, exclusive: the offset of its first message, or
        its next offset if it had none.

        Offsets behind a message need no check: a queue loses its oldest messages first.
        """
        if first <= offset:
            return
        if self.ranges and self.ranges[-1].stop >= offset:
            offset = self.ranges.pop().start
        self.ranges.append(range(offset, first))

    def cut(self, offset: int) -> None:
        """Forget the offsets from ``offset`` on: they are pulled again."""
        self.ranges = [range(each.start, min(each.stop, offset)) for each in self.ranges if each.start < offset]

    def clear(self) -> None:
        """Forget the offsets, after their check."""
        self.ranges.clear()
        self.checked_at = machine.monotonic()


async def deleted_among(
    instance: ClientInstance, group: str, queue: MessageQueue, skipped: Sequence[range], *, timeout: float, calls: Calls
) -> tuple[tuple[range, ...], int]:
    """Return the offsets of ``skipped`` that are no longer stored, and the queue's maximum offset.

    Raise the errors of a pull and those of ``lost_offsets``; for an answer that names no further offset OffsetRangeError if the
    queue ends before the last offset of ``skipped`` and its broker has a master, otherwise BrokerNotFoundError.

    Args:
        timeout: Seconds for each request; when the call has lasted as long, it may return after a part of the offsets.
    """
    at, stop = skipped[0].start, skipped[-1].stop
    high, static, odd, short = stop, False, False, False
    # A broker whose answers always name just the next offset must not delay the reading. Java brokers name an offset 800 further,
    # or that of the first message (``DefaultMessageStore.getMessage``).
    until = machine.monotonic() + timeout
    while at < stop and not (short and machine.monotonic() >= until):
        answer, first = await _pull_one(instance, PullRequest(group, queue, at, 1, "*", 0.0, timeout), calls)
        high = answer.max_offset
        static = static or answer.offset_delta is not None
        after = answer.min_offset if answer.status is PullStatus.OFFSET_ILLEGAL else answer.next_offset
        if first is not None:
            at = max(first, at)
            break
        if answer.status is PullStatus.FOUND and not odd:  # a record in place of a deleted message, of which a broker has one
            at, odd = at + 1, True
            continue
        if after <= at:
            shown = instance.names.shown_queue(queue)
            if answer.max_offset < stop and await has_master(instance, queue):
                raise OffsetRangeError(
                    f"offset {stop} of {shown} is outside {answer.min_offset}..{answer.max_offset}; "
                    "start a new reading in this range",
                    min_offset=answer.min_offset,
                    max_offset=answer.max_offset,
                    request="PULL_MESSAGE",
                    broker=queue.broker_name,
                    address=answer.address,
                )
            raise BrokerNotFoundError(
                f"whether offset {at} of {shown} was deleted cannot be determined: the queue ends at {answer.max_offset} at its "
                "broker, which names no further offset; try again, and after a replica's answer when its master is back",
                broker=queue.broker_name,
                address=answer.address,
            )
        short = after - at < SHORT_STEP
        at = after
    missing = tuple([range(each.start, min(each.stop, at)) for each in skipped if each.start < at])
    if not missing:
        return (), high
    return await lost_offsets(instance, queue, missing, static=static, calls=calls), high


async def _pull_one(instance: ClientInstance, request: PullRequest, calls: Calls) -> tuple[PulledBody, int | None]:
    """Return the answer to a pull of one message, and the offset of its message; None if no message of the queue is in it.

    A message whose answer is above ``max_frame_size`` counts: the reading itself may never want it.
    """
    try:
        answer = await pull_body(instance, request, calls)
    except FrameTooLargeError as error:
        after, end = next_offset_in(error), end_in(error)
        if after is None or end is None:
            raise
        return PulledBody(PullStatus.FOUND, b"", after, request.offset, end, None, error.address or ""), after - 1
    if answer.status is not PullStatus.FOUND:
        return answer, None
    return answer, first_queue_offset(answer.body, request.queue, request.offset, answer.offset_delta)
