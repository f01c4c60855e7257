"""Reads and packs stored records for a broker.

``read_record`` splits a record into its parts, so that the broker can store it again elsewhere. It makes no checks, because
this server wrote the record, and leaves the body as it is, compressed or not. ``pack_record`` packs records of the usual form
(two IPv4 hosts, a short topic name) faster than ``encode_stored``, which packs all other records.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import msgspec

from rmq_protocol.checksum import crc32
from rmq_protocol.constants import MAGIC_CODE_V1, MAX_TOPIC_LENGTH, SysFlag
from rmq_protocol.ids import format_host, pack_host
from rmq_protocol.properties import decode_properties
from rmq_protocol.stored import encode_stored

_HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")
_HEAD_SIZE: Final = _HEAD.size
_pack_head = _HEAD.pack
_pack_size = struct.Struct(">h").pack
_NO_V6: Final = ~int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
_FLAG_TO_BORN: Final = struct.Struct(">iqqiq")
_FLAG_AT: Final = 16
_QUEUE_OFFSET_AT: Final = 20
_POSITION_AT: Final = 28
_SYS_FLAG_AT: Final = 36
_BORN_HOST_AT: Final = 48
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_TAIL: Final = struct.Struct(">iqi")
_BORN_V6: Final = int(SysFlag.BORN_HOST_V6)
_STORE_V6: Final = int(SysFlag.STORE_HOST_V6)


class Draft(msgspec.Struct, gc=False):
    """A message before it is stored."""

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: str
    reconsume_times: int = 0
    prepared_offset: int = 0


def queue_offset(record: bytes) -> int:
    return int(_LONG.unpack_from(record, _QUEUE_OFFSET_AT)[0])


def physical_offset(record: bytes) -> int:
    return int(_LONG.unpack_from(record, _POSITION_AT)[0])


def stored_ms(record: bytes) -> int:
    """Return the store time, in milliseconds since the epoch."""
    born = 20 if _INT.unpack_from(record, _SYS_FLAG_AT)[0] & _BORN_V6 else 8
    return int(_LONG.unpack_from(record, _BORN_HOST_AT + born)[0])


def properties_of(record: bytes) -> dict[str, str]:
    sys_flag = _INT.unpack_from(record, _SYS_FLAG_AT)[0]
    at = _HEAD_SIZE + (12 if sys_flag & _BORN_V6 else 0) + (12 if sys_flag & _STORE_V6 else 0)
    at += _INT.unpack_from(record, at - 4)[0]
    if _INT.unpack_from(record, 4)[0] == MAGIC_CODE_V1:
        at += 1 + record[at]
    else:
        at += 2 + int.from_bytes(record[at : at + 2], "big")
    return decode_properties(record[at + 2 :])


def keys_of(record: bytes) -> dict[str, None]:
    """Return the keys for the index: the message's unique id and its keys."""
    properties = properties_of(record)
    found = dict.fromkeys(properties["KEYS"].split(" ")) if "KEYS" in properties else {}
    found[properties.get("UNIQ_KEY", "")] = None
    found.pop("", None)
    return found


def read_record(record: bytes) -> Draft:
    flag, _, _, sys_flag, born_time_ms = _FLAG_TO_BORN.unpack_from(record, _FLAG_AT)
    at = _BORN_HOST_AT + (16 if sys_flag & _BORN_V6 else 4)
    born_host = format_host(record[_BORN_HOST_AT:at], _INT.unpack_from(record, at)[0])
    at += 4 + 8 + (20 if sys_flag & _STORE_V6 else 8)
    reconsume_times, prepared_offset, size = _TAIL.unpack_from(record, at)
    at += _TAIL.size
    body, at = record[at : at + size], at + size
    width = 1 if _INT.unpack_from(record, 4)[0] == MAGIC_CODE_V1 else 2
    size = int.from_bytes(record[at : at + width], "big")
    at += width
    topic, at = record[at : at + size].decode(), at + size
    return Draft(
        topic=topic,
        queue_id=_INT.unpack_from(record, 12)[0],
        body=body,
        properties=decode_properties(record[at + 2 :]),
        flag=flag,
        sys_flag=sys_flag,
        born_time_ms=born_time_ms,
        born_host=born_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
    )


@lru_cache(maxsize=4096)
def _host(host: str) -> bytes:
    """Return the bytes of an IPv4 host and its port. Return ``b""`` for other hosts."""
    ip, port = pack_host(host)
    return ip + _INT.pack(port) if len(ip) == 4 else b""


@lru_cache(maxsize=4096)
def _topic(name: str) -> bytes:
    """Return a byte with the length of a topic, followed by the topic. Return ``b""`` for a topic longer than MAX_TOPIC_LENGTH
    bytes.
    """
    encoded = name.encode()
    return bytes((len(encoded),)) + encoded if len(encoded) <= MAX_TOPIC_LENGTH else b""


def pack_record(draft: Draft, properties: bytes, offset: int, position: int, store_time_ms: int, store_host: str) -> bytes:
    """Pack a record.

    Args:
        properties: The encoded properties of the record, which replace the properties of the draft.

    Raises:
        ProtocolError: For values that do not fit their fields.
    """
    name, born, store, body = _topic(draft.topic), _host(draft.born_host), _host(store_host), draft.body
    if name and born and store:
        size = len(body)
        try:
            head = _pack_head(
                _HEAD_SIZE + size + len(name) + 2 + len(properties),
                MAGIC_CODE_V1,
                crc32(body),
                draft.queue_id,
                draft.flag,
                offset,
                position,
                draft.sys_flag & _NO_V6,
                draft.born_time_ms,
                born,
                store_time_ms,
                store,
                draft.reconsume_times,
                draft.prepared_offset,
                size,
            )
            return b"".join((head, body, name, _pack_size(len(properties)), properties))
        except struct.error:
            pass  # encode_stored raises the error that names the field
    return encode_stored(
        topic=draft.topic,
        body=body,
        properties=properties,
        queue_id=draft.queue_id,
        queue_offset=offset,
        commit_log_offset=position,
        flag=draft.flag,
        sys_flag=draft.sys_flag,
        born_time_ms=draft.born_time_ms,
        born_host=draft.born_host,
        store_time_ms=store_time_ms,
        store_host=store_host,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=draft.prepared_offset,
    )
