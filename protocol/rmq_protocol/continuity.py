"""Which offsets an answer to a pull leaves out.

A queue numbers its messages without a gap, and a pull without a tag filter gives all of them from the offset asked for up to the
one where the next pull goes on. What is missing in between was deleted, unless something else accounts for it: a record that
cannot be read, a compacted topic, the change of a static topic's queue from one broker to another (``gaps_of_mapping``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from .errors import CorruptMessageError
from .topics import LogicQueueMappingItem

__all__ = ["first_queue_offset", "gaps_of_mapping", "missing_offsets", "ranges_text", "without_ranges"]

_OFFSET_AT = slice(20, 28)
"""Bytes of a stored record that hold its queue offset."""


def missing_offsets(
    first: int, end: int, found: Iterable[int], corrupt: Sequence[CorruptMessageError] = ()
) -> tuple[range, ...]:
    """The offsets of [``first``, ``end``) that are not in ``found``, as ranges.

    A corrupt record accounts for the offsets from its own up to the next one found, as it may be a batch; one whose offset cannot
    be read accounts for all that is missing.
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
    """What of ``ranges`` lies in none of ``others``."""
    left = [each for each in ranges if each]
    for other in others:
        left = [
            part
            for each in left
            for part in (range(each.start, min(each.stop, other.start)), range(max(each.start, other.stop), each.stop))
            if part
        ]
    return tuple(left)


def gaps_of_mapping(items: Sequence[LogicQueueMappingItem]) -> tuple[range, ...]:
    """Offsets of a static topic's queue that no message ever had: where it goes from one broker to the next, its offsets go on at
    a round number."""
    return tuple(
        range(item.logic_end, following.logic_offset)
        for item, following in pairwise(items)
        if item.logic_end < following.logic_offset
    )


def first_queue_offset(body: bytes, offset_delta: int | None = None) -> int | None:
    """Offset of the first record in a pull's body; None where there is none."""
    return int.from_bytes(body[_OFFSET_AT], "big", signed=True) + (offset_delta or 0) if len(body) >= _OFFSET_AT.stop else None


def ranges_text(ranges: Iterable[range], most: int = 5) -> str:
    """``17, 20 to 31``; beyond ``most`` ranges their number."""
    texts = [str(each.start) if each.stop - each.start == 1 else f"{each.start} to {each.stop - 1}" for each in ranges]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} ranges more" if more > 0 else "")
