"""Reads stored records one at a time, with all checks. This is the general path of ``stored`` and ``columns``.

A damaged record must not hide the records around it, and no input may make reading slow. The position of the next record follows
from the fields. If the fields cannot be read, it follows from TOTALSIZE, provided that a magic code is at that position. Otherwise
reading stops. If fields and TOTALSIZE lead to different positions, the record is corrupt, and the next record begins at the
position with a magic code. If both positions have one, the CRC of the body helps to decide. This CRC and decompression could be
repeated on the same bytes, so they have a budget. A block of 4 MiB takes a few seconds at most (2 s for the worst known block).

The decompressed bodies of one block together stay within ``max_decompressed_size``, because many small decompression bombs cost as
much memory as a large one. A body that does not fit is left for another call (``allow_partial``) or reported.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

from .batch import BATCH_OVERHEAD, BatchRecord, decode_batch
from .checksum import crc32
from .compression import UnreadableBodyError, compression_type, decompress
from .constants import BLANK_MAGIC_CODE, LMQ_PREFIX, MAGIC_CODE_V1, MAGIC_CODE_V2, MAX_PROPERTIES_SIZE, SysFlag
from .errors import CorruptMessageError, RemoteProtocolError
from .message import MessageExt, MessageQueue
from .properties import decode_properties
from .stored_layout import FIXED, FIXED_V4, HOSTS_V6, MAX_PORT, MIN_RECORD
from .subscription import parse_tags

_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_INNER_BATCH: Final = int(SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
_HEAD: Final = struct.Struct(">ii")
_PORT_AND_OFFSET: Final = struct.Struct(">iq")
_MAGIC_BYTES: Final = frozenset(
    magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_CODE_V1, MAGIC_CODE_V2, BLANK_MAGIC_CODE)
)

_WORK_PER_BLOCK: Final = 32  # limit of bytes decompressed for one block, bombs included, as a multiple of max_decompressed_size
_MESSAGE_COST: Final = 512  # bytes of memory that an expanded message takes in addition to its body
_PROPERTIES_COST: Final = 16  # bytes of memory for each encoded byte

Fields: TypeAlias = tuple[Any, ...]
"""The values that ``FIXED`` unpacks, in the order of the record."""


class _Full(Exception):  # noqa: N818 - a signal inside this module
    """Raised if another decompressed body would exceed the limit."""


class RecordBlock(ABC):
    """A block of stored records, with the limits and the results of decoding it.

    Each subclass keeps the messages in its own form, and has a faster path for ordinary records.

    Attributes:
        stopped_at: Byte position of the record at which reading stopped because the record did not fit. None if reading did not
            stop.
    """

    __slots__ = (
        "_allow_partial",
        "_broker",
        "_check_crc",
        "_corrupt",
        "_crc_room",
        "_data",
        "_end",
        "_max_size",
        "_resume_at",
        "_room",
        "_topics",
        "_unwrap",
        "_work",
        "offset_delta",
        "only_queue_id",
        "only_topic",
        "queue",
        "stopped_at",
        "tags",
    )

    def __init__(
        self, data: bytes, broker: str, max_size: int, check_crc: bool, unwrap_batches: bool, allow_partial: bool
    ) -> None:
        self._data = data if type(data) is bytes else bytes(data)
        self._end = len(data)
        self._broker = broker
        self._max_size = max_size
        self._check_crc = check_crc
        self._unwrap = unwrap_batches
        self._allow_partial = allow_partial
        self._room = max_size
        self._work = max_size * _WORK_PER_BLOCK
        self._crc_room = self._end
        self._corrupt: list[CorruptMessageError] = []
        self._resume_at: int | None = None
        self.stopped_at: int | None = None
        self._topics: dict[bytes, str] = {}
        self.queue: MessageQueue | None = None
        self.tags: frozenset[str] | None = None
        # Topic and queue of the records to keep. None means any topic or queue. Records of a static topic, whose pulls have an
        # offset delta, have the id of the physical queue. Records of a light message queue (LMQ) have the topic and queue id to
        # which they were sent.
        self.only_topic: str | None = None
        self.only_queue_id: int | None = None
        self.offset_delta = 0

    def choose(self, queue: MessageQueue, tags: str, offset_delta: int | None, *, only_queue: bool) -> None:
        """Set which records of a pull are kept. The arguments are those of ``decode_pull``.

        Raises:
            LocalProtocolError: If ``tags`` consists of separators only.
        """
        self.queue = queue
        self.tags = None if tags == "*" else parse_tags(tags)  # saves a call for each pull
        self.offset_delta = offset_delta or 0
        if only_queue and not queue.topic.startswith(LMQ_PREFIX):
            self.only_topic = queue.topic
            self.only_queue_id = queue.queue_id if offset_delta is None else None

    @abstractmethod
    def _keep(self, fields: Fields, topic: str, body: bytes, properties: dict[str, str]) -> None:
        """Keep a valid message.

        Args:
            fields: Fields of the message's record, without the compression bit if the body was decompressed. A message of an inner
                batch has the fields that ``_keep_inner`` makes.
        """

    def _topic(self, encoded: bytes) -> str:
        topic = self._topics.get(encoded)
        if topic is None:
            topic = self._topics[encoded] = str(encoded, "utf-8", "replace")
        return topic

    def _record(self, position: int) -> int:
        """Read the record at ``position``. Return the position of the next record, or the end if reading stops."""
        data, end = self._data, self._end
        if position + MIN_RECORD > end:
            return self._remainder(position)
        fixed = FIXED_V4
        fields = fixed.unpack_from(data, position)
        total, magic, sys_flag = fields[0], fields[1], fields[7]
        if magic != MAGIC_CODE_V1 and magic != MAGIC_CODE_V2:
            return self._no_message(position, total, magic)
        if sys_flag & HOSTS_V6:
            fixed = FIXED[sys_flag & HOSTS_V6]
            if position + fixed.size > end:
                return self._lost(position, total, f"{end - position} bytes are left, a record with IPv6 hosts takes more")
            fields = fixed.unpack_from(data, position)

        length = fields[16]
        body_at = position + fixed.size
        body_end = body_at + length
        topic_at = body_end + (1 if magic == MAGIC_CODE_V1 else 2)
        if length < 0 or topic_at + 2 > end:
            needed = topic_at - body_end + 2
            problem = f"body length {length} must be at least 0 and leave {needed} of the {end - body_at} bytes that follow"
            return self._lost(position, total, problem, fields)
        length = data[body_end] if magic == MAGIC_CODE_V1 else data[body_end] << 8 | data[body_end + 1]
        topic_end = topic_at + length
        limit = 0x7F if magic == MAGIC_CODE_V1 else 0x7FFF
        if length > limit or topic_end + 2 > end:
            problem = f"topic length {length} must be at most {limit} and leave 2 of the {end - topic_at} bytes that follow"
            return self._lost(position, total, problem, fields)
        length = data[topic_end] << 8 | data[topic_end + 1]
        following: int = topic_end + 2 + length
        if length > MAX_PROPERTIES_SIZE or following > end:
            problem = f"properties length {length} must be at most {min(MAX_PROPERTIES_SIZE, end - topic_end - 2)}"
            return self._lost(position, total, problem, fields)
        if total != following - position:
            return self._disagreement(position, following, fields, body_at, body_end)

        properties = decode_properties(data[topic_end + 2 : following])
        try:
            reason = self._accept(fields, data[body_at:body_end], data[topic_at:topic_end], properties)
            if reason is not None:
                self._report(position, reason, fields, properties)
        except CorruptMessageError as error:
            # The error is not chained, because its traceback would keep the whole block alive.
            self._report(position, str(error), fields, properties, intact=error.intact)
        except _Full:
            if self._allow_partial:
                self._resume_at, self.stopped_at = fields[5] + self.offset_delta, position
                return end
            reason = f"not decoded: the bodies of one block would take more than max_decompressed_size, {self._max_size} bytes"
            self._report(position, reason, fields, properties, intact=True)
        return following

    # ------------------------------------------------------------------------------------------------------- a good record

    def _accept(self, fields: Fields, body: bytes, topic_bytes: bytes, properties: dict[str, str]) -> str | None:
        """Check and decompress the body, then keep the message and return None. Return the reason if the message is corrupt.

        A message of another topic or queue is skipped.

        Raises:
            CorruptMessageError: If the body cannot be decompressed.
            _Full: If the decompressed body would exceed the limit.
        """
        topic = self._topic(topic_bytes)
        if not (self.only_topic in (None, topic) and self.only_queue_id in (None, fields[3])):
            return None
        crc, sys_flag = fields[2], fields[7]
        sound = not self._check_crc or crc32(body) == crc
        compressed = sys_flag & _COMPRESSED and body
        if compressed:
            body = self._decompress(body, sys_flag)
            sys_flag &= ~_COMPRESSED
            plain = [*fields]
            plain[7] = sys_flag
            fields = tuple(plain)
            # If MessageDecoder encodes a message that it decoded before, it leaves the CRC of the plain body.
            sound = sound or crc32(body) == crc
        if not sound:
            return f"the CRC of the body differs from the CRC in the record, {crc}"
        if (fields[10] | fields[13]) & ~MAX_PORT:
            return f"the hosts have the ports {fields[10]} and {fields[13]}, which must be from 0 to 65535"
        if sys_flag & _INNER_BATCH == _INNER_BATCH and self._unwrap and body:
            limit = self._room // _MESSAGE_COST if compressed else None
            try:
                inner = decode_batch(body, limit)
            except RemoteProtocolError:  # keep the batch as it is, like Java, unless another call can hold it
                if limit is not None and limit * BATCH_OVERHEAD < len(body) and self._room < self._max_size:
                    raise _Full from None
            else:
                self._keep_inner(inner, fields, topic, MessageExt("", b"", properties=properties).wait_store)
                if compressed:
                    self._room -= len(body) + sum(_MESSAGE_COST + _PROPERTIES_COST * len(record.properties) for record in inner)
                return None
        if compressed:
            self._room -= len(body)
        self._keep(fields, topic, body, properties)
        return None

    def _decompress(self, body: bytes, sys_flag: int) -> bytes:
        kind = compression_type(sys_flag)
        if self._work <= 0 or self._room <= 0:
            raise _Full
        try:
            plain = decompress(body, kind, self._room)
        except UnreadableBodyError as error:
            self._work -= error.produced
            if error.too_large and self._room < self._max_size:
                raise _Full from None
            raise
        self._work -= len(plain)
        return plain

    def _keep_inner(self, inner: list[BatchRecord], fields: Fields, topic: str, wait_store: bool) -> None:
        """Keep the messages of an inner batch. Each has its own offset, and 0 in the fields that only a record has."""
        wait = "true" if wait_store else "false"
        keep = self._keep
        (
            _, magic, _, queue_id, _, first, place, sys_flag, born_time, born, born_port, store_time, store, store_port, _, _,
            length,
        ) = fields  # fmt: skip
        for offset, (flag, body, encoded) in enumerate(inner, first):
            properties = decode_properties(encoded)
            properties["WAIT"] = wait
            own = (
                0, magic, 0, queue_id, flag, offset, place, sys_flag, born_time, born, born_port, store_time, store, store_port, 0,
                0, length,
            )  # fmt: skip
            keep(own, topic, body, properties)

    # -------------------------------------------------------------------------------------------------------- a bad record

    def _remainder(self, position: int) -> int:
        """Handle the last bytes of a block, which are too few for a message but may be a blank filler."""
        left = self._end - position
        if left >= _HEAD.size:
            total, magic = _HEAD.unpack_from(self._data, position)
            if magic == BLANK_MAGIC_CODE:
                return self._no_message(position, total, magic)
        self._report(position, f"{left} bytes are left, a record takes at least {MIN_RECORD}")
        return self._end

    def _no_message(self, position: int, total: int, magic: int) -> int:
        """Skip a blank filler. Report an unknown magic code or a filler of a wrong size."""
        if magic != BLANK_MAGIC_CODE:
            return self._lost(position, total, f"unknown magic code {magic & 0xFFFFFFFF:#010x}")
        if _HEAD.size <= total <= self._end - position:
            return position + total
        self._report(position, f"blank filler of {total} bytes must have from {_HEAD.size} to {self._end - position}")
        return self._end

    def _lost(self, position: int, total: int, reason: str, fields: Fields | None = None) -> int:
        """Report a record whose fields cannot be read. Return the position after TOTALSIZE bytes if a record begins there, else the
        end.
        """
        if self._begins_at(position + total, total):
            self._report(position, reason, fields)
            return position + total
        self._report(position, f"{reason}; the next record cannot be found", fields)
        return self._end

    def _begins_at(self, position: int, total: int) -> bool:
        if total < MIN_RECORD or position > self._end:
            return False
        return position == self._end or self._data[position + 4 : position + 8] in _MAGIC_BYTES

    def _disagreement(self, position: int, following: int, fields: Fields, body_at: int, body_end: int) -> int:
        """Report a record after which the next one would begin at different positions, according to TOTALSIZE and to the fields.

        Return the position at which a record begins, or the end if a record begins at neither.

        If a record begins at both, the fields are taken to be right, with two exceptions: the CRC contradicts the body that the
        fields delimit, or TOTALSIZE leads into the topic or properties that they delimit. (A string cannot contain a magic code.)
        """
        total, size = fields[0], following - position
        reason = f"TOTALSIZE is {total}, the fields take {size} bytes"
        by_total = self._begins_at(position + total, total) and (
            body_end <= position + total < following or self._crc_contradicts(fields[2], body_at, body_end)
        )
        if by_total or not self._begins_at(following, size):
            return self._lost(position, total, reason, fields)
        self._report(position, reason, fields)
        return following

    def _crc_contradicts(self, crc: int, body_at: int, body_end: int) -> bool:
        if body_end - body_at > self._crc_room:
            return False
        self._crc_room -= body_end - body_at
        return crc32(memoryview(self._data)[body_at:body_end]) != crc

    def _report(
        self,
        position: int,
        reason: str,
        fields: Fields | None = None,
        properties: dict[str, str] | None = None,
        *,
        intact: bool = False,
    ) -> None:
        msg_id = queue_offset = None
        if fields is not None:
            queue_offset = fields[5] + self.offset_delta
            msg_id = (properties or {}).get("UNIQ_KEY")
            if msg_id is None:
                msg_id = (fields[12] + _PORT_AND_OFFSET.pack(fields[13], fields[6])).hex().upper()
        self._corrupt.append(
            CorruptMessageError(
                f"stored record at byte {position}: {reason}",
                position=position,
                msg_id=msg_id,
                queue_offset=queue_offset,
                intact=intact,
                broker=self._broker or None,
            )
        )
