"""Records as brokers store them: bodies of pulls, look-ups, transaction checks (``MessageDecoder``); their layout is in
``stored_layout``.

Nearly all records are ordinary: version 1, IPv4 hosts, a body neither compressed nor a batch, lengths that agree, the right CRC.
Those are read by one loop without a call to a Python function (``_ordinary``); what neighbours have in common, such as hosts and
all properties but the unique id, is made once. Every other record is read again, by the general way, which alone judges.
Measured with five properties, CRC included: 2.2 us a record, 7 us by the general way.

One bad record must not hide the good ones around it, and no bytes may make this slow. The step to the next record is given
by the fields; where they cannot be read, by TOTALSIZE if a magic code stands there; else reading stops. Where both can be
read but disagree, the record is corrupt, and its body CRC decides which of the two to believe. Work that could be repeated on
the same bytes (that CRC, decompression) is paid from budgets, so a block of 4 MiB takes less than a second whatever it holds.

Memory: decompressed bodies of one block together stay within ``max_decompressed_size``, for many small bombs cost as much as
a large one. What does not fit is left for another call (``allow_partial``) or reported.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple, TypeAlias

from .batch import BATCH_OVERHEAD, BatchRecord, decode_batch
from .checksum import ISAL_FROM, crc32, isal_crc32, zlib_crc32
from .compression import UnreadableBodyError, compression_type, decompress
from .constants import (
    BLANK_MAGIC_CODE,
    LMQ_PREFIX,
    MAGIC_CODE_V1,
    MAGIC_CODE_V2,
    MAX_DECOMPRESSED_SIZE,
    MAX_PROPERTIES_SIZE,
    MAX_TOPIC_LENGTH,
    SysFlag,
)
from .errors import CorruptMessageError, RemoteProtocolError
from .ids import format_host
from .message import MessageExt, MessageQueue
from .properties import decode_properties
from .stored_layout import FIXED, FIXED_V4, HOSTS_V6, MAX_PORT, MIN_RECORD, encode_stored
from .subscription import split_tags

__all__ = ["DecodedMessages", "decode_messages", "decode_pull", "encode_stored", "parse_tags"]

_COMPRESSED: Final = int(SysFlag.COMPRESSED)
_INNER_BATCH: Final = int(SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH)
_UNUSUAL: Final = HOSTS_V6 | _COMPRESSED | _INNER_BATCH
_ORDINARY: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_PORT_BELOW_64K: Final = bytes(2)
_UNIQUE_ID: Final = b"UNIQ_KEY\x01"
_HEAD: Final = struct.Struct(">ii")
_PORT_AND_OFFSET: Final = struct.Struct(">iq")
_MAGIC_BYTES: Final = frozenset(
    magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_CODE_V1, MAGIC_CODE_V2, BLANK_MAGIC_CODE)
)

_WORK_PER_BLOCK: Final = 32  # decompressed bytes produced for one block, bombs included, as a multiple of max_decompressed_size
_MESSAGE_COST: Final = 512  # bytes of memory an expanded message takes besides its body
_PROPERTIES_COST: Final = 16  # per encoded byte


_Fields: TypeAlias = tuple[Any, ...]


class DecodedMessages(NamedTuple):
    """``resume_at``: queue offset of the first record left undecoded for want of room; None where all were decoded."""

    messages: tuple[MessageExt, ...]
    corrupt: tuple[CorruptMessageError, ...]
    resume_at: int | None = None


def decode_messages(
    data: bytes,
    *,
    topic_queue_broker: str = "",
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
    check_crc: bool = True,
    unwrap_batches: bool = True,
    allow_partial: bool = False,
) -> DecodedMessages:
    """The messages of a block of stored records, and the errors of those that cannot be read; never raises for bad bytes.

    ``topic_queue_broker``: broker name put in each message's queue. ``max_decompressed_size``: bytes, for one body and for
    all decompressed bodies of the block together. Where they do not fit: with ``allow_partial`` decoding stops and
    ``resume_at`` says where to pull again, else these records are among the corrupt ones. ``unwrap_batches``: inner batches
    give their messages; a broken one is passed on as it is.
    """
    block = Block(data, topic_queue_broker, max_decompressed_size, check_crc, unwrap_batches, allow_partial)
    return block.decode()


def decode_pull(
    data: bytes,
    queue: MessageQueue,
    *,
    tags: str = "*",
    min_offset: int | None = None,
    max_offset: int | None = None,
    offset_delta: int | None = None,
    max_decompressed_size: int = MAX_DECOMPRESSED_SIZE,
    check_crc: bool = True,
    allow_partial: bool = False,
    only_queue: bool = False,
) -> DecodedMessages:
    """The messages of a pull's body, as ``PullAPIWrapper.processPullResult`` completes them.

    Each carries the pulled ``queue``, properties MIN_OFFSET and MAX_OFFSET where given, its offset moved by ``offset_delta``
    and, out of a transaction, ``transaction_id``. ``tags`` ("*" or "a || b") are compared as texts, since brokers compare
    hashes only. ``only_queue``: a record of another topic or queue is left out. The rest as in
    ``decode_messages``. Raises ``LocalProtocolError`` for ``tags`` that name none.
    """
    block = Block(data, queue.broker_name, max_decompressed_size, check_crc, True, allow_partial)
    block.choose(queue, tags, offset_delta, only_queue=only_queue)
    bounds = {"MIN_OFFSET": min_offset, "MAX_OFFSET": max_offset}
    block.added = {name: str(offset) for name, offset in bounds.items() if offset is not None}
    return block.decode()


def parse_tags(expression: str | None) -> frozenset[str] | None:
    """Tags of a subscription expression "a || b"; None where every message is wanted (``FilterAPI.buildSubscriptionData``).

    Raises ``LocalProtocolError`` for an expression of separators only.
    """
    if not expression or expression == "*":
        return None
    return frozenset(split_tags(expression)) or None


class _Full(Exception):  # noqa: N818 - a signal inside this module
    """No room for another decompressed body."""


class Block:
    """One call's input, limits and results. ``fields``: what ``FIXED`` unpacks, in the order of the record.

    ``columns`` reads with it too, and keeps what it accepts in another form. ``stopped_at``: the byte that belongs to
    ``resume_at``.
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
        "_messages",
        "_queues",
        "_resume_at",
        "_room",
        "_shapes",
        "_topics",
        "_unwrap",
        "_work",
        "added",
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
        self._messages: list[MessageExt] = []
        self._corrupt: list[CorruptMessageError] = []
        self._resume_at: int | None = None
        self.stopped_at: int | None = None
        self._topics: dict[bytes, str] = {}
        self._shapes: dict[bytes, dict[str, str]] = {}
        self._queues: dict[tuple[str, int], MessageQueue] = {}
        self.queue: MessageQueue | None = None
        self.tags: frozenset[str] | None = None
        self.only_topic: str | None = None
        self.only_queue_id: int | None = None
        """What records must be of, to be kept; None: of any. Those of a static topic (a pull's offset delta says so) have the
        number of the physical queue they lie in, those of a light queue (LMQ) topic and number of the queue they were sent to."""
        self.offset_delta = 0
        self.added: dict[str, str] | None = None

    def choose(self, queue: MessageQueue, tags: str, offset_delta: int | None, *, only_queue: bool) -> None:
        """Says what is kept of a pull's records, as ``decode_pull`` does."""
        self.queue = queue
        self.tags = None if tags == "*" else parse_tags(tags)
        self.offset_delta = offset_delta or 0
        if only_queue and not queue.topic.startswith(LMQ_PREFIX):
            self.only_topic = queue.topic
            self.only_queue_id = queue.queue_id if offset_delta is None else None

    def decode(self) -> DecodedMessages:
        position, end = 0, self._end
        while position < end:
            position = self._ordinary(position)
            if position < end:
                position = self._record(position)
        return DecodedMessages(tuple(self._messages), tuple(self._corrupt), self._resume_at)

    def _ordinary(self, position: int) -> int:
        """Reads records as long as they are ordinary; gives the place of the first that is not, or the end.

        A record that differs from the one before in numbers, body and unique id only, as most do, has the same bytes between body
        and unique id (``middle``: topic, length of the properties, those before it) and behind the unique id (``tail``).
        """
        data, end, tags, added, delta = self._data, self._end, self.tags, self.added, self.offset_delta
        unpack, size, check_crc, keep = _ORDINARY.unpack_from, _ORDINARY.size, self._check_crc, self._messages.append
        given_queue, only_topic, only_queue_id = self.queue, self.only_topic, self.only_queue_id
        queue = given_queue or MessageQueue("", "", 0)
        middle = tail = born_host = store_host = b""
        topic = born = store = ""
        known: dict[str, str] = {}
        known_queue: int | None = None
        id_length, last_start = 0, end - MIN_RECORD
        while position <= last_start:
            (
                total, magic, crc, queue_id, flag, offset, place, sys_flag, born_time, born_bytes, store_time, store_bytes, times,
                prepared, length,
            ) = unpack(data, position)  # fmt: skip
            body_end = position + size + length
            following: int = position + total
            if magic != MAGIC_CODE_V1 or sys_flag & _UNUSUAL or length < 0 or body_end + 3 > end or following > end:
                return position
            if queue_id != only_queue_id and only_queue_id is not None:
                return position
            id_at = body_end + len(middle)
            id_end = id_at + id_length
            alike = data[id_end:following] == tail and data[body_end:id_at] == middle and id_length
            if not alike or not (unique_id := data[id_at:id_end]).isalnum():
                topic_end = body_end + 1 + data[body_end]
                if data[body_end] > MAX_TOPIC_LENGTH or following < topic_end + 2:
                    return position
                if data[topic_end] << 8 | data[topic_end + 1] != following - topic_end - 2 or data[topic_end] > 0x7F:
                    return position
                text = data[topic_end + 2 : following]
                id_at = text.find(_UNIQUE_ID) + len(_UNIQUE_ID)
                id_end = text.find(b"\x02", id_at)
                unique_id = text[id_at:id_end]
                known = self._properties(text, id_at, id_end)
                topic, known_queue = self._topic(data[body_end + 1 : topic_end]), None
                if topic != only_topic and only_topic is not None:
                    return position
                middle, tail, id_length = data[body_end : topic_end + 2 + id_at], text[id_end:], 0
                if id_at < id_end and _UNIQUE_ID not in tail and unique_id.isalnum():
                    id_length = len(unique_id) if known.get("UNIQ_KEY") == unique_id.decode() else 0
            body = data[position + size : body_end]
            if check_crc and (zlib_crc32(body) if length < ISAL_FROM else isal_crc32(body)) & 0x7FFFFFFF != crc:
                return position
            if born_bytes != born_host or store_bytes != store_host:
                if born_bytes[4:6] != _PORT_BELOW_64K or store_bytes[4:6] != _PORT_BELOW_64K:
                    return position
                born_host, store_host = born_bytes, store_bytes
                born = format_host(born_bytes[:4], int.from_bytes(born_bytes[6:], "big"))
                store = format_host(store_bytes[:4], int.from_bytes(store_bytes[6:], "big"))
            position = following
            if tags is not None and known.get("TAGS") not in tags:
                continue
            properties = known.copy()
            if id_length:
                properties["UNIQ_KEY"] = unique_id.decode()
            transaction_id = None
            if given_queue is None:
                if queue_id != known_queue:
                    queue, known_queue = self._queue(topic, queue_id), queue_id
            elif "TRAN_MSG" in known and known["TRAN_MSG"].lower() == "true":
                transaction_id = properties.get("UNIQ_KEY")
            if added:
                properties.update(added)
            keep(
                MessageExt(
                    topic, body, flag, properties, queue, offset + delta, place, sys_flag, crc, total, born_time, store_time,
                    born, store, times, prepared, transaction_id,
                )
            )  # fmt: skip
        return position

    def _properties(self, text: bytes, id_at: int, id_end: int) -> dict[str, str]:
        """Decodes ``text``, once for all that differ in the unique id only, which is from ``id_at`` to ``id_end``."""
        shape, start = text[:id_at] + text[id_end:], id_at - len(_UNIQUE_ID)
        if not 0 <= start < id_end - len(_UNIQUE_ID):
            return decode_properties(text)
        known = self._shapes.get(shape)
        if known is not None:
            return {**known, "UNIQ_KEY": str(text[id_at:id_end], "utf-8", "replace")}
        known = decode_properties(text)
        if (start == 0 or text[start - 1] == 2) and shape.count(_UNIQUE_ID) == 1:
            self._shapes[shape] = known
        return known

    def _topic(self, encoded: bytes) -> str:
        topic = self._topics.get(encoded)
        if topic is None:
            topic = self._topics[encoded] = str(encoded, "utf-8", "replace")
        return topic

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = MessageQueue(topic, self._broker, queue_id)
        return queue

    def _record(self, position: int) -> int:
        """Reads the record at ``position``; gives the place of the next one, the end where nothing more can be read."""
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
                return self._lost(position, total, f"{end - position} bytes are left of a record with IPv6 hosts")
            fields = fixed.unpack_from(data, position)

        length = fields[16]
        body_at = position + fixed.size
        body_end = body_at + length
        topic_at = body_end + (1 if magic == MAGIC_CODE_V1 else 2)
        if length < 0 or topic_at + 2 > end:
            return self._lost(position, total, f"body length {length}, {end - body_at} bytes are left", fields)
        length = data[body_end] if magic == MAGIC_CODE_V1 else data[body_end] << 8 | data[body_end + 1]
        topic_end = topic_at + length
        if length > (0x7F if magic == MAGIC_CODE_V1 else 0x7FFF) or topic_end + 2 > end:
            return self._lost(position, total, f"topic length {length}, {end - topic_at} bytes are left", fields)
        length = data[topic_end] << 8 | data[topic_end + 1]
        following: int = topic_end + 2 + length
        if length > MAX_PROPERTIES_SIZE or following > end:
            return self._lost(position, total, f"properties length {length}, {end - topic_end - 2} bytes are left", fields)
        if total != following - position:
            return self._disagreement(position, following, fields, body_at, body_end)

        properties = decode_properties(data[topic_end + 2 : following])
        try:
            reason = self._accept(fields, data[body_at:body_end], data[topic_at:topic_end], properties)
            if reason is not None:
                self._report(position, reason, fields, properties)
        except CorruptMessageError as error:
            # Not chained: its traceback would keep the whole block alive.
            self._report(position, str(error), fields, properties)
        except _Full:
            if self._allow_partial:
                self._resume_at, self.stopped_at = fields[5] + self.offset_delta, position
                return end
            reason = f"not decoded: the decompressed bodies of one block would take more than {self._max_size} bytes"
            self._report(position, reason, fields, properties)
        return following

    # ------------------------------------------------------------------------------------------------------- a good record

    def _accept(self, fields: _Fields, body: bytes, topic_bytes: bytes, properties: dict[str, str]) -> str | None:
        """Checks and decompresses the body, then keeps the message or says why not. A foreign one is passed over.

        Raises ``CorruptMessageError`` for a body that cannot be decompressed, and ``_Full``.
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
            # MessageDecoder, encoding what it decoded before, leaves the CRC of the plain body.
            sound = sound or crc32(body) == crc
        if not sound:
            return f"the CRC of the body is not {crc}, as the record says"
        if (fields[10] | fields[13]) & ~MAX_PORT:
            return f"the hosts have the ports {fields[10]} and {fields[13]}"
        if sys_flag & _INNER_BATCH == _INNER_BATCH and self._unwrap and body:
            limit = self._room // _MESSAGE_COST if compressed else None
            try:
                inner = decode_batch(body, limit)
            except RemoteProtocolError:  # passed on as it is, like Java does, unless another call has room for it
                if limit is not None and limit * BATCH_OVERHEAD < len(body) and self._room < self._max_size:
                    raise _Full from None
            else:
                self._keep_inner(inner, fields, sys_flag, topic, MessageExt("", b"", properties=properties).wait_store)
                if compressed:
                    self._room -= len(body) + sum(_MESSAGE_COST + _PROPERTIES_COST * len(record.properties) for record in inner)
                return None
        if compressed:
            self._room -= len(body)
        self._keep(fields, sys_flag, topic, body, fields[4], properties, 0, crc, fields[0], fields[14], fields[15])
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

    def _keep_inner(self, inner: list[BatchRecord], fields: _Fields, sys_flag: int, topic: str, wait_store: bool) -> None:
        wait = "true" if wait_store else "false"
        for index, record in enumerate(inner):
            properties = decode_properties(record.properties)
            properties["WAIT"] = wait
            self._keep(fields, sys_flag, topic, record.body, record.flag, properties, index, 0, 0, 0, 0)

    def _keep(
        self,
        fields: _Fields,
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
        if self.tags is not None and properties.get("TAGS") not in self.tags:
            return
        queue = self.queue
        transaction_id = None
        if queue is None:
            queue = self._queue(topic, fields[3])
        elif "TRAN_MSG" in properties and properties["TRAN_MSG"].lower() == "true":
            transaction_id = properties.get("UNIQ_KEY")
        if self.added is not None:
            properties.update(self.added)
        self._messages.append(
            MessageExt(
                topic,
                body,
                flag,
                properties,
                queue,
                fields[5] + self.offset_delta + index,
                fields[6],
                sys_flag,
                crc,
                size,
                fields[8],
                fields[11],
                format_host(fields[9], fields[10]),
                format_host(fields[12], fields[13]),
                reconsume_times,
                prepared_offset,
                transaction_id,
            )
        )

    # -------------------------------------------------------------------------------------------------------- a bad record

    def _remainder(self, position: int) -> int:
        """Too few bytes for a message; a blank filler may still fit."""
        left = self._end - position
        if left >= _HEAD.size:
            total, magic = _HEAD.unpack_from(self._data, position)
            if magic == BLANK_MAGIC_CODE:
                return self._no_message(position, total, magic)
        self._report(position, f"{left} bytes are left, a record takes at least {MIN_RECORD}")
        return self._end

    def _no_message(self, position: int, total: int, magic: int) -> int:
        """A blank filler, which is skipped, or an unknown magic code."""
        if magic != BLANK_MAGIC_CODE:
            return self._lost(position, total, f"unknown magic code {magic & 0xFFFFFFFF:#010x}")
        if _HEAD.size <= total <= self._end - position:
            return position + total
        self._report(position, f"blank filler of {total} bytes, {self._end - position} are left")
        return self._end

    def _lost(self, position: int, total: int, reason: str, fields: _Fields | None = None) -> int:
        """The fields cannot be read: go on by TOTALSIZE if a record begins there, else not at all."""
        if self._begins_at(position + total, total):
            self._report(position, reason, fields)
            return position + total
        self._report(position, f"{reason}; the next record cannot be found", fields)
        return self._end

    def _begins_at(self, position: int, total: int) -> bool:
        if total < MIN_RECORD or position > self._end:
            return False
        return position == self._end or self._data[position + 4 : position + 8] in _MAGIC_BYTES

    def _disagreement(self, position: int, following: int, fields: _Fields, body_at: int, body_end: int) -> int:
        """TOTALSIZE and the fields lead to different places: follow the one where a record begins.

        Where one begins at both, the fields are right, unless the CRC speaks against the body they delimit or TOTALSIZE
        leads into what they call topic and properties, for no text holds a magic code.
        """
        total, size = fields[0], following - position
        reason = f"TOTALSIZE is {total}, the fields take {size} bytes"
        by_total = self._begins_at(position + total, total) and (
            body_end <= position + total < following or self._crc_speaks_against(fields[2], body_at, body_end)
        )
        if by_total or not self._begins_at(following, size):
            return self._lost(position, total, reason, fields)
        self._report(position, reason, fields)
        return following

    def _crc_speaks_against(self, crc: int, body_at: int, body_end: int) -> bool:
        if body_end - body_at > self._crc_room:
            return False
        self._crc_room -= body_end - body_at
        return crc32(memoryview(self._data)[body_at:body_end]) != crc

    def _report(
        self,
        position: int,
        reason: str,
        fields: _Fields | None = None,
        properties: dict[str, str] | None = None,
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
                broker=self._broker or None,
            )
        )
