"""Decodes stored records into columns, without an object for each message.

The fixed part of an ordinary record (version 1, IPv4 hosts, a body that is neither compressed nor a batch, consistent lengths, the
correct CRC) is kept unchanged, and the numbers of all rows are read from these parts at once. ``stored_block`` reads all other
records and makes rows of the same form, so that the rules for unusual and damaged records are in a single module.

The body of a pull mostly contains only ordinary records. Therefore records are first cut by their lengths alone, and the other
fields are checked for all records at once (``_cut``), which takes half the time of a loop that checks each record. If a check
fails, the result of ``_cut`` is dropped, and the records are read one after the other.

If the decompressed body of a record would exceed the limit for all bodies together, the record is not read. ``resume`` is then the
position for the next call, which the caller makes after it has used these rows.
"""

from __future__ import annotations

import struct
import sys
from array import array
from functools import lru_cache
from typing import Final, NamedTuple

from .checksum import ISAL_FROM, crc32, isal_crc32, zlib_crc32
from .constants import MAGIC_CODE_V1, MAX_DECOMPRESSED_SIZE, MAX_PROPERTIES_SIZE, MAX_TOPIC_LENGTH, SysFlag
from .errors import CorruptMessageError
from .message import MessageQueue
from .properties import decode_properties, properties_text
from .stored_block import Fields, RecordBlock
from .stored_layout import FIXED_V4, MAX_PORT, MIN_RECORD

__all__ = [
    "BORN_HOST",
    "BORN_TIME",
    "COMMIT_LOG_OFFSET",
    "FLAG",
    "QUEUE_OFFSET",
    "RECONSUME_TIMES",
    "STORE_HOST",
    "STORE_TIME",
    "SYS_FLAG",
    "ColumnsRead",
    "StoredColumns",
    "read_columns",
]

FLAG: Final = 16
QUEUE_OFFSET: Final = 20
COMMIT_LOG_OFFSET: Final = 28
SYS_FLAG: Final = 36
BORN_TIME: Final = 40
BORN_HOST: Final = 48
STORE_TIME: Final = 56
STORE_HOST: Final = 64
RECONSUME_TIMES: Final = 72
"""FLAG to RECONSUME_TIMES are byte positions in the head of a row. Flags and counts take 4 bytes, times (epoch ms) and offsets take
8 bytes, and a host has an IPv4 address of 4 bytes and a port of 4 bytes."""

_SIZE: Final = FIXED_V4.size
_STEP: Final = _SIZE // 4
_LENGTHS: Final = struct.Struct(">i80xI")
"""The length of a record and the length of its body."""
_CHECKED: Final = struct.Struct(">iiii4xq8xi12xi12xi12xi")
_SWAPPED: Final = sys.byteorder == "little"
_UNUSUAL: Final = int(
    SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
)
_MAGIC: Final = MAGIC_CODE_V1.to_bytes(4, "big", signed=True)
_PORTS: Final = (BORN_HOST + 4, STORE_HOST + 4)
_MAGIC_AT: Final = 4
_BODY_CRC: Final = 8
_BODY_SIZE: Final = 84
_QUEUE_ID: Final = 12
_EVERYTHING: Final = (0, 1 << 63)
_NO_HOST: Final = bytes(4)


class JoinedBytes:
    """Collects bytes that arrive in parts. ``join`` returns all bytes."""

    __slots__ = ("_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)

    def join(self) -> bytes:
        if len(self._parts) != 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]


class _Heads:
    """The fixed parts of records. Methods such as ``int32`` read one number of all records at once."""

    __slots__ = ("_numbers", "heads")

    def __init__(self) -> None:
        self.heads = JoinedBytes()
        self._numbers: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.heads) // _SIZE

    def int32(self, place: int) -> array[int]:
        """Return the 4-byte numbers at byte ``place`` of every row."""
        numbers = self._words()[place // 4 :: _STEP]
        if _SWAPPED:
            numbers.byteswap()
        return numbers

    def int64(self, place: int) -> array[int]:
        numbers = array("q", self.raw64(place))
        if _SWAPPED:
            numbers.byteswap()
        return numbers

    def raw64(self, place: int) -> bytes:
        """Return the 8 bytes from byte ``place`` of every row, joined."""
        words = self._words()
        pairs = array("i", bytes(8 * len(self)))
        pairs[0::2] = words[place // 4 :: _STEP]
        pairs[1::2] = words[place // 4 + 1 :: _STEP]
        return pairs.tobytes()

    def _words(self) -> array[int]:
        if len(self._numbers) != len(self) * _STEP:
            self._numbers = array("i", self.heads.join())
        return self._numbers


class StoredColumns(_Heads):
    """Messages as columns, in the order in which they were read.

    Args:
        topics: Whether to keep the topics.
        bodies: Whether to keep the bodies.
        properties: Whether to keep the properties.

    Attributes:
        heads: The fixed parts of all rows.
        topics: The topic of each row. Empty if topics are not kept.
        bodies: The bodies of all rows, joined. Empty if bodies are not kept.
        properties: The encoded properties of all rows, joined. Empty if properties are not kept. ``decode_properties`` decodes the
            properties of a row.
        property_sizes: The size of each row's encoded properties in bytes. Empty if properties are not kept.
        other_hosts: Row -> both addresses (born, store) if one of them is IPv6. Both addresses in the head of such a row are 0.
        topic_names: Encoded name -> name of all topics that were read.
    """

    __slots__ = (
        "bodies",
        "other_hosts",
        "properties",
        "property_sizes",
        "topic_names",
        "topics",
        "wants_bodies",
        "wants_properties",
        "wants_topics",
    )

    def __init__(self, *, topics: bool = True, bodies: bool = True, properties: bool = True) -> None:
        super().__init__()
        self.wants_topics, self.wants_bodies, self.wants_properties = topics, bodies, properties
        self.topics: list[str] = []
        self.bodies = JoinedBytes()
        self.properties = JoinedBytes()
        self.property_sizes: array[int] = array("i")
        self.other_hosts: dict[int, tuple[bytes, bytes]] = {}
        self.topic_names: dict[bytes, str] = {}

    @property
    def size(self) -> int:
        """The total bytes of heads, bodies and properties."""
        return len(self.heads) + len(self.bodies) + len(self.properties)

    @property
    def body_sizes(self) -> array[int]:
        """The size of each row's body in bytes, even if bodies are not kept."""
        return self.int32(_BODY_SIZE)


class ColumnsRead(NamedTuple):
    """The result of ``read_columns``.

    Attributes:
        corrupt: The errors of records that cannot be read.
        resume: The ``position`` for the next call if a record would have exceeded ``max_decompressed_size``, else None.
    """

    corrupt: tuple[CorruptMessageError, ...]
    resume: int | None


def read_columns(
    data: bytes,
    into: StoredColumns,
    queue: MessageQueue,
    *,
    tags: str = "*",
    offsets: tuple[int, int] = _EVERYTHING,
    offset_delta: int | None = None,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
    position: int = 0,
    only_queue: bool = False,
) -> ColumnsRead:
    """Add to ``into`` the messages that ``decode_pull`` would return for ``data``, a pull's body, beginning at byte ``position``.

    The other arguments are those of ``decode_pull``.

    Args:
        offsets: The first offset to keep and the offset after the last one, both with ``offset_delta`` added. Damaged records with
            other offsets are not reported.

    Raises:
        LocalProtocolError: If ``tags`` contains only separators.
    """
    block = _ColumnBlock(data, queue.broker_name, max_decompressed_size, True, True, True)
    block.choose(queue, tags, offset_delta, only_queue=only_queue)
    return block.read(into, position, *offsets)


class _ColumnBlock(RecordBlock):
    __slots__ = ("_bodies", "_first", "_heads", "_into", "_last", "_texts")

    def read(self, into: StoredColumns, position: int, first: int, last: int) -> ColumnsRead:
        self._into, self._first, self._last = into, first, last
        self._topics = into.topic_names
        self._heads: list[bytes] = []
        self._bodies: list[bytes | memoryview] = []
        self._texts: list[bytes] = []
        end = self._end
        if self._cut(position):
            position = end
        else:
            self._heads.clear()
            self._texts.clear()
        while position < end:
            position = self._ordinary(position)
            if position < end:
                position = self._record(position)
        into.heads.add(b"".join(self._heads))
        if into.wants_bodies:
            into.bodies.add(b"".join(self._bodies))
        if into.wants_properties:
            into.properties.add(b"".join(self._texts))
            into.property_sizes.extend(map(len, self._texts))
        corrupt = [error for error in self._corrupt if error.queue_offset is None or first <= error.queue_offset < last]
        return ColumnsRead(tuple(corrupt), self.stopped_at)

    def _cut(self, position: int) -> bool:
        """Keep all records from ``position`` on, and return True if all of them are ordinary and wanted.

        Otherwise return False, and the caller must drop the kept records.
        """
        topic, queue_id, data, end = self.only_topic, self.only_queue_id, self._data, self._end
        if topic is None or queue_id is None or self.tags is not None or self.offset_delta or end - position < MIN_RECORD:
            return False
        encoded = topic.encode()
        if len(encoded) > MAX_TOPIC_LENGTH:
            return False
        topic_part = bytes((len(encoded),)) + encoded
        to_size = len(topic_part)
        heads, texts = self._heads, self._texts
        bodies: list[memoryview] = []  # copying a body of a kilobyte would cost a page fault
        keep_head, keep_body, keep_text = heads.append, bodies.append, texts.append
        unpack, view = _LENGTHS.unpack_from, memoryview(data)
        wants_texts, starts_with, start = self._into.wants_properties, data.startswith, position
        try:
            while position < end:
                total, length = unpack(data, position)
                body_at = position + _SIZE
                body_end = body_at + length
                size_at = body_end + to_size
                following = position + total
                size = data[size_at] << 8 | data[size_at + 1]
                if size_at + 2 + size != following or size > MAX_PROPERTIES_SIZE or not starts_with(topic_part, body_end):
                    return False
                keep_head(data[position:body_at])
                keep_body(view[body_at:body_end])
                if wants_texts:
                    keep_text(data[size_at + 2 : following])
                position = following
        except (IndexError, struct.error):
            return False
        words = array("i", b"".join(heads))
        if position != end or not self._fit(words, queue_id):
            return False
        checksum = isal_crc32 if end - start >= (ISAL_FROM + MIN_RECORD) * len(heads) else zlib_crc32
        sums = array("I", map(checksum, bodies))
        if _SWAPPED:
            sums.byteswap()
        stored = words[_BODY_CRC // 4 :: _STEP].tobytes()
        if int.from_bytes(sums.tobytes(), "big") & _of_31_bits(len(heads)) != int.from_bytes(stored, "big"):
            return False
        self._bodies += bodies
        if self._into.wants_topics:
            self._into.topics += [topic] * len(heads)
        self._topics.setdefault(encoded, topic)
        return True

    def _fit(self, words: array[int], queue_id: int) -> bool:
        """Return whether all records are ordinary and wanted, and their offsets have no gap. ``words`` has their fixed parts."""
        count = len(words) // _STEP
        if words[_MAGIC_AT // 4 :: _STEP].tobytes() != _MAGIC * count:
            return False
        if words[_QUEUE_ID // 4 :: _STEP].tobytes() != queue_id.to_bytes(4, "big") * count:
            return False
        flags = words[SYS_FLAG // 4 :: _STEP]
        if any(flags):
            if _SWAPPED:
                flags.byteswap()
            if any(each & _UNUSUAL for each in flags):
                return False
        for place in _PORTS:
            ports = words[place // 4 :: _STEP].tobytes()
            if ports[0::4].strip(b"\0") or ports[1::4].strip(b"\0"):
                return False
        high, low = words[QUEUE_OFFSET // 4 :: _STEP], words[QUEUE_OFFSET // 4 + 1 :: _STEP]
        if _SWAPPED:
            low.byteswap()
        first = low[0]
        if any(high) or first < 0 or first + count > 1 << 31 or low != array("i", range(first, first + count)):
            return False  # a gap, or a queue with more than 2^31 messages
        return self._first <= first and first + count <= self._last

    def _ordinary(self, position: int) -> int:
        """Read records while they are ordinary, and return the position after them."""
        data, end, into = self._data, self._end, self._into
        first, last, tags, topic_names = self._first, self._last, self.tags, self._topics
        only_topic, only_queue_id = self.only_topic, self.only_queue_id
        unpack, last_start = _CHECKED.unpack_from, end - MIN_RECORD if not self.offset_delta else -1
        keep, keep_body, keep_properties = self._heads.append, self._bodies.append, self._texts.append
        keep_topic = into.topics.append if into.wants_topics else None
        while position <= last_start:
            total, magic, crc, queue_id, offset, flags, born_port, store_port, length = unpack(data, position)
            if magic != MAGIC_CODE_V1 or flags & _UNUSUAL or (born_port | store_port) & ~MAX_PORT:
                return position
            if queue_id != only_queue_id and only_queue_id is not None:
                return position
            body_at = position + _SIZE
            body_end = body_at + length
            if length < 0 or body_end + 3 > end:
                return position
            topic_end = body_end + 1 + data[body_end]
            if data[body_end] > MAX_TOPIC_LENGTH or topic_end + 2 > end:
                return position
            size = data[topic_end] << 8 | data[topic_end + 1]
            following: int = topic_end + 2 + size
            if size > MAX_PROPERTIES_SIZE or following > end or total != following - position:
                return position
            body = data[body_at:body_end]
            topic = topic_names.get(data[body_end + 1 : topic_end])
            if (topic != only_topic and only_topic is not None) or topic is None or crc32(body) != crc:
                return position
            head, position = data[position:body_at], following
            if not first <= offset < last:
                continue
            if tags is not None and decode_properties(data[topic_end + 2 : following]).get("TAGS") not in tags:
                continue
            keep(head)
            keep_body(body)
            keep_properties(data[topic_end + 2 : following])
            if keep_topic is not None:
                keep_topic(topic)
        return position

    def _keep(self, fields: Fields, topic: str, body: bytes, properties: dict[str, str]) -> None:
        offset = fields[5] + self.offset_delta
        if not self._first <= offset < self._last or (self.tags is not None and properties.get("TAGS") not in self.tags):
            return
        into = self._into
        head = [*fields]
        head[5], head[16] = offset, len(body)
        if len(fields[9]) != len(_NO_HOST) or len(fields[12]) != len(_NO_HOST):
            into.other_hosts[len(into) + len(self._heads)] = (fields[9], fields[12])
            head[9] = head[12] = _NO_HOST
        self._heads.append(FIXED_V4.pack(*head))
        self._bodies.append(body)
        if into.wants_properties:
            self._texts.append(properties_text(properties).encode())
        if into.wants_topics:
            into.topics.append(topic)


@lru_cache(maxsize=64)
def _of_31_bits(count: int) -> int:
    """Return a mask that clears the top bit of each of ``count`` 32-bit numbers, because stored checksums have 31 bits."""
    return int.from_bytes(b"\x7f\xff\xff\xff" * count, "big")
