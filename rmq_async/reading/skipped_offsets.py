"""Checks whether the messages at offsets that a filter skipped were still stored when it skipped them."""

# The response to a pull with tags does not tell why it skips an offset: the message may have other tags, or it may have been
# deleted, because a broker treats deleted messages as if they did not match. So a pull without tags requests the first skipped
# offset afterwards. A message that is stored now was also stored when it was skipped, and a queue loses its oldest messages
# first. Usually this takes one small pull per second for each queue, and one at its end.
#
# (The minimum offset that a broker reports is not a substitute. It is corrected seconds late, and while files are being deleted, a
# search by time returns 0 or gets no response; both were observed on 5.5.0 and 4.9.7.)

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
"""Minimum seconds between two checks of a queue."""
SHORT_STEP: Final = 100
"""Distance from a requested offset to the next offset of the response, below which a step of the check counts as short."""


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
        """Add the skipped offsets before the first message of a pull.

        Offsets after a message need no check, because a queue loses its oldest messages first.

        Args:
            offset: The offset of the pull.
            first: The offset of its first message, or its next offset if it returned no message.
        """
        if first <= offset:
            return
        if self.ranges and self.ranges[-1].stop >= offset:
            offset = self.ranges.pop().start
        self.ranges.append(range(offset, first))

    def cut(self, offset: int) -> None:
        """Forget the offsets from ``offset`` on, because they are pulled again."""
        self.ranges = [range(each.start, min(each.stop, offset)) for each in self.ranges if each.start < offset]

    def clear(self) -> None:
        """Forget the offsets, after their check."""
        self.ranges.clear()
        self.checked_at = machine.monotonic()


async def deleted_among(
    instance: ClientInstance, group: str, queue: MessageQueue, skipped: Sequence[range], *, timeout: float, calls: Calls
) -> tuple[tuple[range, ...], int]:
    """Return the offsets of ``skipped`` that are no longer stored, and the queue's maximum offset.

    Args:
        timeout: Seconds for each request. When the call has taken this time, it may return after checking a part of the offsets.

    Raises:
        OffsetRangeError: For a response without a higher offset, if the queue ends before the last offset of ``skipped`` and its
            broker has a master.
        BrokerNotFoundError: For any other response without a higher offset. The errors of a pull and of ``lost_offsets`` also
            propagate.
    """
    at, stop = skipped[0].start, skipped[-1].stop
    high, static, odd, short = stop, False, False, False
    # A broker whose responses always name just the next offset must not delay the read. Java brokers name an offset that is 800
    # higher, or the offset of the first message (``DefaultMessageStore.getMessage``).
    until = machine.monotonic() + timeout
    while at < stop and not (short and machine.monotonic() >= until):
        answer, first = await _pull_one(instance, PullRequest(group, queue, at, 1, "*", 0.0, timeout), calls)
        high = answer.max_offset
        static = static or answer.offset_delta is not None
        after = answer.min_offset if answer.status is PullStatus.OFFSET_ILLEGAL else answer.next_offset
        if first is not None:
            at = max(first, at)
            break
        if answer.status is PullStatus.FOUND and not odd:  # a record in place of a deleted message; a broker has at most one
            at, odd = at + 1, True
            continue
        if after <= at:
            shown = instance.names.shown_queue(queue)
            if answer.max_offset < stop and await has_master(instance, queue):
                raise OffsetRangeError(
                    f"offset {stop} of {shown} is outside {answer.min_offset}..{answer.max_offset}; "
                    "start a new read in this range",
                    min_offset=answer.min_offset,
                    max_offset=answer.max_offset,
                    request="PULL_MESSAGE",
                    broker=queue.broker_name,
                    address=answer.address,
                )
            raise BrokerNotFoundError(
                f"cannot determine whether offset {at} of {shown} was deleted: the queue ends at {answer.max_offset} at its "
                "broker, which returned no higher offset; try again, or if a replica has responded, when the broker has a master",
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
    """Return the response to a pull of one message, and the offset of the message, or None if it has no message of the queue.

    A message whose response is above ``max_frame_size`` counts as stored, because the read itself may never request it.
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
