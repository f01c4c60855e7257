"""Finds the offsets that the response to a pull leaves out.

A queue numbers its messages without a gap, and a pull without a filter returns all messages from the requested offset up to the
offset of the next pull. If an offset is missing, its message was deleted, unless there is another cause: a record that cannot be
read, a compacted topic, or the move of a static topic's queue from one broker to another (``gaps_of_mapping``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from .constants import MAGIC_CODE_V1, MAGIC_CODE_V2
from .errors import CorruptMessageError
from .message import MessageQueue
from .stored_layout import FIXED, FIXED_V4, HOSTS_V6, MIN_RECORD
from .topics import LogicQueueMappingItem


def missing_offsets(
    first: int, end: int, found: Iterable[int], corrupt: Sequence[CorruptMessageError] = ()
) -> tuple[range, ...]:
    """Return the offsets from ``first`` up to (but not including) ``end`` that are not in ``found``, as ranges.

    A corrupt record explains the missing offsets from its own offset up to the next found one, because it may be a batch. If the
    offset of a corrupt record cannot be read or lies outside the range, the record explains all missing offsets.
    """
    unreadable: set[int] = set()
    for error in corrupt:
        if error.queue_offset is None or not first <= error.queue_offset < end:
            return ()
        unreadable.add(error.queue_offset)
    missing: list[range] = []
    at, accounted_for = first, False
    for offset in (*sorted({offset for offset in found if first <= offset < end} | unreadable), end):
        if offset > at and not accounted_for:
            missing.append(range(at, offset))
        at, accounted_for = offset + 1, offset in unreadable
    return tuple(missing)


def without_ranges(ranges: Iterable[range], others: Iterable[range]) -> tuple[range, ...]:
    """Return the parts of ``ranges`` that do not lie in any of ``others``."""
    gaps = _merged(others)
    stops = [gap.stop for gap in gaps]
    left: list[range] = []
    for each in ranges:
        at = each.start
        for number in range(bisect_right(stops, at), len(gaps)):
            gap = gaps[number]
            if gap.start >= each.stop:
                break
            if gap.start > at:
                left.append(range(at, gap.start))
            at = gap.stop
        if at < each.stop:
            left.append(range(at, each.stop))
    return tuple(left)


def _merged(ranges: Iterable[range]) -> list[range]:
    """Return the same offsets as ascending ranges that do not touch."""
    merged: list[range] = []
    for each in sorted([each for each in ranges if each], key=lambda each: each.start):
        if merged and each.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, each.stop))
        else:
            merged.append(each)
    return merged


def gaps_of_mapping(items: Sequence[LogicQueueMappingItem]) -> tuple[range, ...]:
    """Return the offsets of a static topic's queue that no message ever had.

    When the queue moves from one broker to the next, its offsets continue at a round number.

    Args:
        items: The parts of the queue, the oldest first.
    """
    return tuple(
        range(item.logic_end, following.logic_offset)
        for item, following in pairwise(items)
        if item.logic_end < following.logic_offset
    )


def first_queue_offset(body: bytes, queue: MessageQueue, asked: int, offset_delta: int | None = None) -> int | None:
    """Return the offset at which a pull's body begins.

    Return None if the body is empty or its second record has a lower offset. Without ``offset_delta``, also return None if the
    first record belongs to another queue: if a broker has deleted the first file of its log, it returns the first record of the
    oldest remaining file in place of the message at offset 0 of the log, and that record may belong to any queue (5.5.0).

    Args:
        asked: The offset of the pull, which is returned if the first record cannot be read.
        offset_delta: The offset delta in the pull's response, for a static topic.
    """
    head = _head(body, 0, queue)
    if head is None:
        return asked if body else None
    offset, total, foreign = head
    following = _head(body, total, queue)
    if (foreign and offset_delta is None) or (following is not None and following[0] < offset):
        return None
    return offset + (offset_delta or 0)


def _head(body: bytes, position: int, queue: MessageQueue) -> tuple[int, int, bool] | None:
    """Return the queue offset and the size of the record at ``position``, and whether it belongs to another queue.

    Return None if no record can be read there.
    """
    if position < 0 or len(body) - position < MIN_RECORD:
        return None
    fields = FIXED_V4.unpack_from(body, position)
    total, magic, queue_id, offset, sys_flag = fields[0], fields[1], fields[3], fields[5], fields[7]
    if magic not in (MAGIC_CODE_V1, MAGIC_CODE_V2) or total < MIN_RECORD:
        return None
    fixed = FIXED[sys_flag & HOSTS_V6]
    if len(body) - position < fixed.size:
        return None
    length_at = position + fixed.size + fixed.unpack_from(body, position)[-1]
    topic_at = length_at + (1 if magic == MAGIC_CODE_V1 else 2)
    topic = queue.topic.encode()
    other = int.from_bytes(body[length_at:topic_at], "big") != len(topic) or body[topic_at : topic_at + len(topic)] != topic
    return offset, total, other or queue_id != queue.queue_id


def ranges_text(ranges: Iterable[range], most: int = 5) -> str:
    """Return ranges as text, such as ``17, 20 to 31``.

    If there are more than ``most`` ranges, the text has the first ``most`` ranges and the number of the others.
    """
    texts = [str(each.start) if each.stop - each.start == 1 else f"{each.start} to {each.stop - 1}" for each in ranges]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more ranges" if more > 0 else "")
