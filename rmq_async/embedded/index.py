"""The index of keys for QUERY_MESSAGE.

Queries, not sends, add its entries.

An entry is two 8-byte numbers: a hash over broker, topic and key, and the message's physical offset, in store order. A look-up
searches the column of hashes as bytes, from its end. Different keys may have one hash, so the caller compares the message itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

__all__ = ["ENTRY_SIZE", "KeyIndex", "key_hash"]

ENTRY_SIZE: Final = 32
"""Bytes per entry that count against the memory bound: two numbers, and as much for entries that were forgotten."""
_CUT_FROM: Final = 4096
_NUMBER: Final = 8


def key_hash(broker: str, topic: str, key: str) -> int:
    return hash((key, topic, broker))


class KeyIndex:
    """The index of messages by their keys.

    Attributes:
        end: Physical offset up to which messages have been looked at.
    """

    def __init__(self) -> None:
        self.end = 0
        self._hashes = array("q")
        self._positions = array("q")
        self._first = 0

    def __len__(self) -> int:
        return len(self._positions) - self._first

    def add(self, hashed: int, position: int) -> None:
        self._hashes.append(hashed)
        self._positions.append(position)

    def forget(self, before: int) -> int:
        """Drop the entries of positions below ``before``; return their number."""
        positions, old = self._positions, self._first
        first, end = old, len(positions)
        while first < end and positions[first] < before:
            first += 1
        self._first = first
        if first >= _CUT_FROM and first * 2 >= end:
            del self._hashes[:first], positions[:first]
            self._first = 0
        return first - old

    def truncate(self, end: int) -> int:
        """Drop the entries of positions from ``end`` on, which other messages will have; return their number."""
        at = bisect_left(self._positions, end, self._first)
        gone = len(self._positions) - at
        del self._hashes[at:], self._positions[at:]
        self.end = min(self.end, end)
        return gone

    def find(self, wanted: int, low: int, high: int) -> Iterator[int]:
        """Yield the positions from ``low`` to ``high`` (exclusive) that were added with the hash ``wanted``, newest first."""
        first = bisect_left(self._positions, low, self._first)
        at = bisect_left(self._positions, high, first)
        with memoryview(self._hashes) as view:
            column = bytes(view[first:at])
        needle = array("q", (wanted,)).tobytes()
        end = len(column)
        while (found := column.rfind(needle, 0, end)) >= 0:
            if found % _NUMBER == 0:
                yield self._positions[first + found // _NUMBER]
                end = found
            else:  # half of one entry and half of the next
                end = found + _NUMBER - 1
