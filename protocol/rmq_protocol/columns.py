"""Decodes stored records into columns, without an object for each message.

An ordinary record (version 1, IPv4 hosts, body neither compressed nor a batch, lengths that agree, the right CRC) costs one unpack
and the slices of the wanted columns; its fixed part is kept as it is, and the numbers of all rows are read from there at once.
Every other record is read by ``stored_block``, with its limits and errors, and becomes a row of the same form, so that one module
decides what a record means.

A record whose body does not fit into the room for decompressed bodies is not read: ``resume`` is the byte for the next call, after
the caller has used up these rows.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final, NamedTuple

from .checksum import crc32
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
"""Bytes of a row's head. Flags and counts are 4 bytes, times (milliseconds) and offsets 8, a host is 4 and a port of 4."""

_SIZE: Final = FIXED_V4.size
_STEP: Final = _SIZE // 4
_CHECKED: Final = struct.Struct(">iiii4xq8xi12xi12xi12xi")
_SWAPPED: Final = sys.byteorder == "little"
_UNUSUAL: Final = int(
    SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
)
_EVERYTHING: Final = (0, 1 << 63)
_NO_HOST: Final = bytes(4)


class StoredColumns:
    """Rows, in the order read: ``heads``, the fixed part of each; the others are as long, or empty where they are not wanted.

    ``properties``: each as its text, in UTF-8 if it was valid; see ``decode_properties``. ``size``: bytes of all that is kept;
    ``properties_size``: those of properties among them. ``other_hosts``: addresses (born, store) by row, where one of them is of
    IPv6; the head has none then. ``topic_names``: every topic that was met.
    """

    __slots__ = (
        "_numbers",
        "bodies",
        "heads",
        "other_hosts",
        "properties",
        "properties_size",
        "size",
        "topic_names",
        "topics",
        "wants_bodies",
        "wants_properties",
        "wants_topics",
    )

    def __init__(self, *, topics: bool = True, bodies: bool = True, properties: bool = True) -> None:
        self.wants_topics, self.wants_bodies, self.wants_properties = topics, bodies, properties
        self.heads: list[bytes] = []
        self.topics: list[str] = []
        self.bodies: list[bytes] = []
        self.properties: list[bytes] = []
        self.size = 0
        self.properties_size = 0
        self.other_hosts: dict[int, tuple[bytes, bytes]] = {}
        self.topic_names: dict[bytes, str] = {}
        self._numbers: array[int] = array("i")

    def __len__(self) -> int:
        return len(self.heads)

    def int32(self, place: int) -> array[int]:
        """The numbers of 4 bytes at ``place`` of every row."""
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
        """The 8 bytes at ``place`` of every row, joined."""
        words = self._words()
        pairs = array("i", bytes(8 * len(self.heads)))
        pairs[0::2] = words[place // 4 :: _STEP]
        pairs[1::2] = words[place // 4 + 1 :: _STEP]
        return pairs.tobytes()

    def _words(self) -> array[int]:
        if len(self._numbers) != len(self.heads) * _STEP:
            self._numbers = array("i", b"".join(self.heads))
        return self._numbers


class ColumnsRead(NamedTuple):
    """``resume``: the byte to go on at; None at the end."""

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
    """Adds the messages of a pull's body, from byte ``position`` on, to ``into``; the same ones that ``decode_pull`` gives.

    ``offsets``: first and end of what is kept, by the offset that includes ``offset_delta``; damaged records known to be outside
    are not reported either. ``only_queue``: as for ``decode_pull``. Raises ``LocalProtocolError`` for ``tags`` that name none.
    """
    block = _ColumnBlock(data, queue.broker_name, max_decompressed_size, True, True, True)
    block.choose(queue, tags, offset_delta, only_queue=only_queue)
    return block.read(into, position, *offsets)


class _ColumnBlock(RecordBlock):
    __slots__ = ("_first", "_into", "_last")

    def read(self, into: StoredColumns, position: int, first: int, last: int) -> ColumnsRead:
        self._into, self._first, self._last = into, first, last
        self._topics = into.topic_names
        rows, bodies, texts = len(into.heads), len(into.bodies), len(into.properties)
        end = self._end
        while position < end:
            position = self._ordinary(position)
            if position < end:
                position = self._record(position)
        width = sum(map(len, into.properties[texts:]))
        into.properties_size += width
        into.size += (len(into.heads) - rows) * _SIZE + sum(map(len, into.bodies[bodies:])) + width
        corrupt = [error for error in self._corrupt if error.queue_offset is None or first <= error.queue_offset < last]
        return ColumnsRead(tuple(corrupt), self.stopped_at)

    def _ordinary(self, position: int) -> int:
        """Reads records as long as they are ordinary; returns the position of the first that is not, or the end."""
        data, end, into = self._data, self._end, self._into
        first, last, tags, topic_names = self._first, self._last, self.tags, self._topics
        only_topic, only_queue_id = self.only_topic, self.only_queue_id
        unpack, last_start = _CHECKED.unpack_from, end - MIN_RECORD if not self.offset_delta else -1
        keep = into.heads.append
        keep_body = into.bodies.append if into.wants_bodies else None
        keep_properties = into.properties.append if into.wants_properties else None
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
            if keep_body is not None:
                keep_body(body)
            if keep_properties is not None:
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
            into.other_hosts[len(into)] = (fields[9], fields[12])
            head[9] = head[12] = _NO_HOST
        into.heads.append(FIXED_V4.pack(*head))
        if into.wants_bodies:
            into.bodies.append(body)
        if into.wants_properties:
            into.properties.append(properties_text(properties).encode())
        if into.wants_topics:
            into.topics.append(topic)
