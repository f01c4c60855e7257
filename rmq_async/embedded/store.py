"""Messages in memory: a commit log, for one broker or for all brokers of a server, and the queues that point into the log.

A record consists of the bytes that a broker would have on disk (``rmq_protocol.stored``). It is created once, when the message
arrives, and returned unchanged. The log holds the records in store order, and only the log deletes them: above ``max_memory``,
the oldest record of all topics is deleted and the minimum offset of its queue moves, as when a real broker deletes its oldest
file. The brokers of one ``EmbeddedRocketMQ`` share one log, and therefore one sequence of physical offsets, because a shared
log gives one store order and one memory limit for the whole server. Each broker sees a log with gaps.

Deleted records leave unused entries at the front of the lists, which are removed when they make up half of a list.
``max_memory`` limits the bytes of the records, a ``RECORD_OVERHEAD`` per record, and the entries in the index (``index``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from typing import Final

from rmq_protocol.java_types import string_hash

from .records import keys_of, physical_offset, stored_ms

# The index of keys for QUERY_MESSAGE.
#
# Queries add the entries, so sends need not.
#
# An entry is two 8-byte numbers: a hash over broker, topic and key, and the message's physical offset, in store order. A
# look-up searches the column of hashes as bytes, from the end. Different keys can have the same hash, so the caller must
# compare the message itself.

ENTRY_SIZE: Final = 32
"""Bytes per entry that count against the memory limit: two numbers, and the same amount for forgotten entries."""
_INDEX_CUT_FROM: Final = 4096
_NUMBER: Final = 8


def key_hash(broker: str, topic: str, key: str) -> int:
    return hash((key, topic, broker))


class KeyIndex:
    """The index of messages by their keys.

    Attributes:
        end: Physical offset up to which messages have been indexed.
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
        """Drop the entries of positions below ``before``. Return their number."""
        positions, old = self._positions, self._first
        first, end = old, len(positions)
        while first < end and positions[first] < before:
            first += 1
        self._first = first
        if first >= _INDEX_CUT_FROM and first * 2 >= end:
            del self._hashes[:first], positions[:first]
            self._first = 0
        return first - old

    def truncate(self, end: int) -> int:
        """Drop the entries of positions from ``end`` on, because other messages will get these positions. Return the number of
        entries.
        """
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
            else:  # the match spans two entries
                end = found + _NUMBER - 1


RECORD_OVERHEAD: Final = 128
"""Overhead in bytes that counts for each record (measured with tracemalloc: 80, and 44 in the unused front of the lists)."""
_CUT_FROM: Final = 1024
_FIXED_SIZE: Final = 80
"""Number of bytes at the beginning of a record that contain its store time, with any kind of hosts."""
_LOOK_UP_COST: Final = 16
"""Cost of finding one record of a queue in the log, as a multiple of the cost of visiting one record of the log in order."""
_SWEEP_EVERY: Final = 256
"""Number of deleted records between two sweeps of the index. Until a sweep, the entries of deleted records count against
``max_memory``."""


class Queue:
    """One queue of a topic on one broker: its records in order, the hash codes of their tags, and their store times.

    Args:
        broker_name: The name of the queue's broker.

    Attributes:
        oldest: Offset of the oldest existing record.
        min_offset: The minimum offset that pulls report. After records were expired, it is below ``oldest`` until it is
            corrected.
        max_offset: Offset of the next record to be written.
    """

    __slots__ = ("_codes", "_expired", "_first", "_records", "_start", "_times", "broker_name", "queue_id", "topic", "waiting")

    def __init__(self, topic: str, broker_name: str, queue_id: int) -> None:
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.waiting = 0
        """Number of pulls that are held until a message arrives."""
        self._records: list[bytes] = []
        self._codes = array("i")
        self._times = array("q")
        self._start = 0  # queue offset of _records[0]
        self._first = 0  # index of the oldest live record
        self._expired = 0  # queue offset before which records were expired

    @property
    def min_offset(self) -> int:
        return self._start + self._first

    @property
    def max_offset(self) -> int:
        return self._start + len(self._records)

    @property
    def oldest(self) -> int:
        return max(self._start + self._first, self._expired)

    def append(self, record: bytes, code: int, stored_ms: int) -> None:
        self._records.append(record)
        self._codes.append(code)
        self._times.append(stored_ms)

    def expire(self, before: int) -> None:
        """Delete the records below ``before``. ``min_offset`` stays unchanged until ``correct`` or ``forget_oldest`` is called."""
        for at in range(self.oldest, before):
            self._records[at - self._start] = b""
        self._expired = max(self._expired, before)

    def offset_after(self, position: int) -> int:
        """Return the offset after the records with physical offsets up to ``position``."""
        return self._start + bisect_right(self._records, position, self.oldest - self._start, key=physical_offset)

    def correct(self) -> None:
        """Set ``min_offset`` to the offset of the oldest record."""
        self._first = self.oldest - self._start

    def take_back(self) -> None:
        """Remove the newest record as if it had never been stored."""
        self._records.pop()
        self._codes.pop()
        self._times.pop()

    def forget_oldest(self) -> None:
        self.correct()
        first = self._first
        self._records[first] = b""
        self._first = first = first + 1
        if first >= _CUT_FROM and first * 2 >= len(self._records):
            del self._records[:first], self._codes[:first], self._times[:first]
            self._start += first
            self._first = 0

    def read(
        self,
        offset: int,
        count: int,
        size: int,
        scan: int,
        codes: Collection[int] | None,
        accepts: Callable[[bytes], bool] | None = None,
    ) -> tuple[list[bytes], int]:
        """Return the matching records from ``offset`` (between minimum and maximum) on, and the offset at which to read next.

        Examine at most ``scan`` records, including expired records, and stop before a record that exceeds ``count`` records or
        ``size`` bytes. The first match may be larger.

        Args:
            codes: Hash codes of the requested tags. None means all tags.
            accepts: A function that returns whether a record with matching tags is requested. None means all records.
        """
        found: list[bytes] = []
        total = 0
        at = offset - self._start
        end = min(len(self._records), at + scan)
        at = min(max(at, self._expired - self._start), end)
        while at < end:
            record = self._records[at]
            if found and (len(found) >= count or total + len(record) > size):
                break
            if (codes is None or self._codes[at] in codes) and (accepts is None or accepts(record)):
                found.append(record)
                total += len(record)
            at += 1
        return found, at + self._start

    def offset_at(self, time_ms: int, *, upper: bool) -> int:
        """Return the offset of the first record stored at ``time_ms`` or later, or the maximum offset if there is no such
        record.

        Args:
            upper: If True, return the offset of the last record stored at ``time_ms`` or earlier, or of the oldest record if
                there is no such record.
        """
        if not upper:
            return self._start + bisect_left(self._times, time_ms, self.oldest - self._start)
        return max(self._start + bisect_right(self._times, time_ms, self.oldest - self._start) - 1, self.oldest)

    def stored_ms(self, offset: int) -> int | None:
        at = offset - self._start
        return self._times[at] if self.oldest <= offset and at < len(self._times) else None

    def record(self, offset: int) -> bytes | None:
        at = offset - self._start
        return self._records[at] if self.oldest <= offset and at < len(self._records) else None


class CommitLog:
    """All records in store order, and the index of their keys.

    Args:
        max_memory: Maximum number of bytes of records and their overhead. Above it, the oldest records are deleted, but never
            the newest record.
        clock: A function that returns the milliseconds since the epoch.
    """

    def __init__(self, max_memory: int, clock: Callable[[], int]) -> None:
        self.max_memory = max_memory
        self.memory = 0
        self.keys = KeyIndex()
        self.end = 0
        """Physical offset of the next record."""
        self.appended = 0
        """Number of records that were ever stored."""
        self._clock = clock
        self._now = 0
        self._records: list[bytes] = []
        self._queues: list[Queue | None] = []
        self._offsets = array("q")
        self._first = 0
        self._light: dict[int, tuple[Queue, ...]] = {}
        """The light queues of records, by physical offset."""

    def __len__(self) -> int:
        return len(self._records) - self._first

    def now(self) -> int:
        """Return the time of the clock, or the latest time that was returned before if the clock was set back.

        Store times must not decrease, because binary searches look them up.
        """
        now = self._clock()
        if now > self._now:
            self._now = now
        return self._now

    @property
    def start(self) -> int:
        """The physical offset of the oldest record. It equals ``end`` if there are no records."""
        return self._offsets[self._first] if self._first < len(self._offsets) else self.end

    @property
    def flushed(self) -> int:
        """Physical offset up to which records survive a loss of power. In this log, all records do."""
        return self.end

    def flush(self) -> None:
        """Make all records survive a loss of power. In this log, they already do."""

    def halt(self) -> None:
        """Stop the flushes, because the process has ended. This log has no flushes."""

    def append(self, queue: Queue, record: bytes, code: int, stored_ms: int, light: tuple[Queue, ...] = ()) -> None:
        """Store a message.

        Args:
            code: Hash code of the message's tags (``tag_code``).
            stored_ms: The store time, a result of ``now``.
            light: The light queues that also contain the message.
        """
        queue.append(record, code, stored_ms)
        if light:
            self._light[self.end] = light
            self.memory += len(light) * RECORD_OVERHEAD
            for each in light:
                each.append(record, code, stored_ms)
        self._records.append(record)
        self._queues.append(queue)
        self._offsets.append(self.end)
        self.end += len(record)
        self.appended += 1
        self.memory += len(record) + RECORD_OVERHEAD
        while self.memory > self.max_memory and len(self._records) - self._first > 1:
            self._forget_oldest()

    def index(self, count: int) -> bool:
        """Add the keys of further records to ``keys`` until ``count`` records and keys have been handled.

        Return whether all records are now in the index. Delete the oldest records if ``memory`` then exceeds ``max_memory``.
        """
        offsets, keys = self._offsets, self.keys
        at = bisect_left(offsets, keys.end, self._first)
        before = len(keys)
        while at < len(offsets) and count > 0:
            queue = self._queues[at]
            if queue is not None:
                found = keys_of(self._records[at])
                count -= len(found)
                for key in found:
                    keys.add(key_hash(queue.broker_name, queue.topic, key), offsets[at])
            at += 1
            count -= 1
        keys.end = offsets[at] if at < len(offsets) else self.end
        self.memory += (len(keys) - before) * ENTRY_SIZE
        while self.memory > self.max_memory and len(self) > 1:
            self._forget_oldest()
            self._forget_keys()
        return keys.end == self.end

    def view(self, offset: int) -> tuple[bytes, Queue] | None:
        """Return the record that begins at a physical offset, and its queue. Return None if no record begins there."""
        at = bisect_left(self._offsets, offset, self._first)
        if at == len(self._offsets) or self._offsets[at] != offset:
            return None
        queue = self._queues[at]
        return None if queue is None else (self._records[at], queue)

    def last(self) -> tuple[int, bytes] | None:
        """Return the physical offset of the newest record, and at least its first bytes up to the store time. Return None if
        there are no records.
        """
        return (self._offsets[-1], self._records[-1]) if len(self) else None

    def between(self, first_ms: int, last_ms: int) -> tuple[int, int]:
        """Return the range of the physical offsets of the records stored from ``first_ms`` to ``last_ms``: the offset of the
        first record and the offset after the last record.
        """
        records, offsets = self._records, self._offsets
        low = bisect_left(records, first_ms, self._first, key=stored_ms)
        high = bisect_right(records, last_ms, low, key=stored_ms)
        return (
            offsets[low] if low < len(offsets) else self.end,
            offsets[high] if high < len(offsets) else self.end,
        )

    def records(self, position: int = 0) -> Iterator[tuple[bytes, Queue]]:
        """Yield the records from a physical offset on, in store order, each with its queue."""
        first = bisect_left(self._offsets, position, self._first)
        for record, queue in zip(self._records[first:], self._queues[first:], strict=True):
            if queue is not None:
                yield record, queue

    def earliest_ms(self) -> int:
        """Return the store time of the oldest record in epoch ms. Return -1 if there are no records."""
        return stored_ms(self._records[self._first]) if len(self) else -1

    def drop(self, queues: Collection[Queue]) -> None:
        """Remove all records of the queues except their store times. The queues must not be used afterwards."""
        gone = dict.fromkeys(queue for queue in queues if queue.max_offset > queue.min_offset)
        count = sum(queue.max_offset - queue.min_offset for queue in gone)
        everywhere = count * _LOOK_UP_COST >= len(self)
        for at in range(self._first, len(self._records)) if everywhere else self._places(gone):
            if self._queues[at] in gone:
                self._cut(at)

    def drop_light(self, queue: Queue) -> None:
        """Forget a light queue, which must not be used afterwards. Its records stay in the queues of their topics."""
        self._forget_light(queue, queue.max_offset)

    def expire(self, queue: Queue, before: int) -> None:
        """Delete the queue's records below ``before``. The queue's minimum offset stays unchanged until it is corrected.

        Light queues lose these records and all older ones, as when a real broker deletes a file of the log.
        """
        for offset in range(queue.oldest, before):
            at = self._place(queue, offset)
            for light in self._light.get(self._offsets[at], ()):
                light_before = light.offset_after(self._offsets[at])
                self._forget_light(light, light_before)
                light.expire(light_before)
            self._cut(at)
        queue.expire(before)

    def truncate(self, position: int, broker_name: str) -> int:
        """Remove the records of the broker from physical offset ``position`` on. The maximum offsets of its queues decrease.

        Records of other brokers stay. ``end`` decreases to the end of the last record that stays. Records that were expired
        before are not removed, and the maximum offset of their queue stays above their offsets.

        Returns:
            The number of removed records.
        """
        offsets, records, queues = self._offsets, self._records, self._queues
        low = bisect_left(offsets, position, self._first)
        taken = 0
        for at in range(len(offsets) - 1, low - 1, -1):
            queue = queues[at]
            if queue is not None and queue.broker_name == broker_name:
                queue.take_back()
                for light in self._leave_light(offsets[at]):
                    light.take_back()
                self._cut(at)
                taken += 1
        while len(offsets) > low and queues[-1] is None:
            self.memory -= len(records.pop()) + RECORD_OVERHEAD
            queues.pop()
            self.end = offsets.pop()
        self.memory -= self.keys.truncate(self.end) * ENTRY_SIZE
        return taken

    def place_of_last(self, count: int, broker_name: str) -> int:
        """Return the physical offset from which ``truncate`` must start in order to remove the broker's last ``count`` records."""
        place = self.end
        for at in range(len(self._offsets) - 1, self._first - 1, -1):
            queue = self._queues[at]
            if count and queue is not None and queue.broker_name == broker_name:
                place, count = self._offsets[at], count - 1
            if not count:
                break
        return place

    def _forget_light(self, queue: Queue, before: int) -> None:
        """Remove a light queue from the entries of its records below ``before``."""
        for offset in range(queue.oldest, before):
            record = queue.record(offset)
            position = physical_offset(record) if record else -1
            light = self._light.pop(position, ())
            rest = tuple(each for each in light if each is not queue)
            self.memory -= (len(light) - len(rest)) * RECORD_OVERHEAD
            if rest:
                self._light[position] = rest

    def _leave_light(self, position: int) -> tuple[Queue, ...]:
        """Remove and return the light queues of a record."""
        light = self._light.pop(position, ())
        self.memory -= len(light) * RECORD_OVERHEAD
        return light

    def _cut(self, at: int) -> None:
        rest = self._records[at][:_FIXED_SIZE]
        self.memory -= len(self._records[at]) - len(rest)
        self._records[at] = rest
        self._queues[at] = None

    def _places(self, queues: Collection[Queue]) -> Iterator[int]:
        for queue in queues:
            for offset in range(queue.oldest, queue.max_offset):
                yield self._place(queue, offset)

    def _place(self, queue: Queue, offset: int) -> int:
        record = queue.record(offset)
        assert record is not None
        return bisect_left(self._offsets, physical_offset(record), self._first)

    def clear(self) -> None:
        """Delete all records, as ``max_memory`` does. Offsets continue from their current values."""
        while len(self):
            self._forget_oldest()
        self._forget_keys()

    def _forget_oldest(self) -> None:
        first = self._first
        queue = self._queues[first]
        if queue is not None:
            queue.forget_oldest()
        if self._light:
            for light in self._leave_light(self._offsets[first]):
                light.forget_oldest()
        self.memory -= len(self._records[first]) + RECORD_OVERHEAD
        self._records[first] = b""
        self._queues[first] = None
        self._first = first = first + 1
        if not first % _SWEEP_EVERY:
            self._forget_keys()
        if first >= _CUT_FROM and first * 2 >= len(self._records):
            del self._records[:first], self._queues[:first], self._offsets[:first]
            self._first = 0

    def _forget_keys(self) -> None:
        self.memory -= self.keys.forget(self.start) * ENTRY_SIZE


@lru_cache(maxsize=256)  # each key may have 32 kB
def tag_code(tags: str | None) -> int:
    """Return the number that a consume queue stores for a message's tags: Java's ``String.hashCode``, or 0 without tags."""
    return string_hash(tags) if tags else 0
