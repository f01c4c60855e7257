"""Stored records read into columns: for whoever wants many messages and no object for each.

A record as nearly all are (version 1, IPv4 hosts, body neither compressed nor a batch, lengths that agree, the right CRC) costs
one unpack and the slices that are wanted. Every other one is read by ``stored``, with its limits and its errors, and becomes a row
of the same form: so there is one opinion on what a record means.

What does not fit into the room for decompressed bodies is not read: ``resume`` says at which byte to call again, when what was read
is used up.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from .checksum import crc32
from .constants import MAGIC_CODE_V1, MAX_DECOMPRESSED_SIZE, MAX_PROPERTIES_SIZE, MAX_TOPIC_LENGTH, SysFlag
from .errors import CorruptMessageError
from .message import MessageQueue
from .properties import decode_properties, properties_text
from .stored import FIXED_V4, MAX_PORT, MIN_RECORD, Block, parse_tags

__all__ = [
    "BORN_IP",
    "BORN_PORT",
    "BORN_TIME",
    "COMMIT_LOG_OFFSET",
    "FLAG",
    "QUEUE_OFFSET",
    "RECONSUME_TIMES",
    "STORE_IP",
    "STORE_PORT",
    "STORE_TIME",
    "SYS_FLAG",
    "ColumnsRead",
    "StoredColumns",
    "read_columns",
]

Fields: TypeAlias = tuple[Any, ...]

FLAG: Final = 4
QUEUE_OFFSET: Final = 5
COMMIT_LOG_OFFSET: Final = 6
SYS_FLAG: Final = 7
BORN_TIME: Final = 8
BORN_IP: Final = 9
BORN_PORT: Final = 10
STORE_TIME: Final = 11
STORE_IP: Final = 12
STORE_PORT: Final = 13
RECONSUME_TIMES: Final = 14
"""Places in ``StoredColumns.fields``. Times are milliseconds, addresses 4 or 16 bytes."""

_UNUSUAL: Final = int(
    SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
)
_EVERYTHING: Final = (0, 1 << 63)


class StoredColumns:
    """Rows, in the order read: ``fields`` of each; the others are as long, or empty where they are not wanted.

    ``properties``: each as its text in UTF-8, if it was valid; see ``decode_properties``. ``size``: bytes of all bodies.
    """

    __slots__ = (
        "bodies",
        "fields",
        "properties",
        "size",
        "topic_names",
        "topics",
        "wants_bodies",
        "wants_properties",
        "wants_topics",
    )

    def __init__(self, *, topics: bool = True, bodies: bool = True, properties: bool = True) -> None:
        self.wants_topics, self.wants_bodies, self.wants_properties = topics, bodies, properties
        self.fields: list[Fields] = []
        self.topics: list[str] = []
        self.bodies: list[bytes] = []
        self.properties: list[bytes] = []
        self.size = 0
        self.topic_names: dict[bytes, str] = {}

    def __len__(self) -> int:
        return len(self.fields)


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
) -> ColumnsRead:
    """Adds the messages of a pull's body, from byte ``position`` on, to ``into``; the same ones that ``decode_pull`` gives.

    ``offsets``: first and end of what is kept, by the offset that includes ``offset_delta``; damaged records known to be outside
    are not told either. Raises ``LocalProtocolError`` for ``tags`` that name none.
    """
    block = _ColumnBlock(data, queue.broker_name, max_decompressed_size, True, True, True)
    block.queue = queue
    block.tags = parse_tags(tags)
    block.offset_delta = offset_delta or 0
    return block.read(into, position, *offsets)


class _ColumnBlock(Block):
    __slots__ = ("_first", "_into", "_last")

    def read(self, into: StoredColumns, position: int, first: int, last: int) -> ColumnsRead:
        self._into, self._first, self._last = into, first, last
        self._topics = into.topic_names
        end = self._end
        while position < end:
            position = self._plain(position)
            if position < end:
                position = self._record(position)
        corrupt = [error for error in self._corrupt if error.queue_offset is None or first <= error.queue_offset < last]
        return ColumnsRead(tuple(corrupt), self.stopped_at)

    def _plain(self, position: int) -> int:
        """Reads records as long as they are ordinary; gives the place of the first that is not, or the end."""
        data, end, into, delta = self._data, self._end, self._into, self.offset_delta
        first, last, tags, topic_names = self._first, self._last, self.tags, self._topics
        unpack, fixed_size, last_start = FIXED_V4.unpack_from, FIXED_V4.size, self._end - MIN_RECORD
        keep = into.fields.append
        keep_body = into.bodies.append if into.wants_bodies else None
        keep_properties = into.properties.append if into.wants_properties else None
        keep_topic = into.topics.append if into.wants_topics else None
        while position <= last_start:
            fields = unpack(data, position)
            total, magic, crc, _, _, offset, _, flags, _, _, born_port, _, _, store_port, _, _, length = fields
            if magic != MAGIC_CODE_V1 or flags & _UNUSUAL or delta or (born_port | store_port) & ~MAX_PORT:
                return position
            body_at = position + fixed_size
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
            if topic is None or crc32(body) != crc:
                return position
            position = following
            if not first <= offset < last:
                continue
            if tags is not None and decode_properties(data[topic_end + 2 : following]).get("TAGS") not in tags:
                continue
            keep(fields)
            into.size += length
            if keep_body is not None:
                keep_body(body)
            if keep_properties is not None:
                keep_properties(data[topic_end + 2 : following])
            if keep_topic is not None:
                keep_topic(topic)
        return position

    def _keep(
        self,
        fields: Fields,
        sys_flag: int,
        topic: str,
        body: bytes,
        flag: int,
        properties: dict[str, str],
        index: int,
        crc: int,
        size: int,
        reconsume_times: int,
        prepared_offset: int,
    ) -> None:
        offset = fields[QUEUE_OFFSET] + self.offset_delta + index
        if not self._first <= offset < self._last or (self.tags is not None and properties.get("TAGS") not in self.tags):
            return
        into = self._into
        head = (size, fields[1], crc, fields[3], flag, offset, fields[COMMIT_LOG_OFFSET], sys_flag)
        into.fields.append((*head, *fields[BORN_TIME:RECONSUME_TIMES], reconsume_times, prepared_offset, len(body)))
        into.size += len(body)
        if into.wants_bodies:
            into.bodies.append(body)
        if into.wants_properties:
            into.properties.append(properties_text(properties).encode())
        if into.wants_topics:
            into.topics.append(topic)
