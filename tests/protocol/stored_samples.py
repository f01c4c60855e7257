"""Small stored records to decode and to damage."""

from __future__ import annotations

import struct
from typing import Any

from rmq_protocol.batch import encode_batch_message
from rmq_protocol.constants import SysFlag
from rmq_protocol.properties import encode_properties
from rmq_protocol.stored import DecodedMessages, encode_stored

COMPRESSED = SysFlag.COMPRESSED.value
BATCH_FLAGS = (SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH).value
CRC, SYS_FLAG, BODY_LENGTH, BODY = 8, 36, 84, 88
"""Offsets in a record with IPv4 hosts."""


def record(offset: int, body: bytes = b"hello", **changes: Any) -> bytes:
    properties = changes.pop("properties", {"UNIQ_KEY": f"U{offset}", "TAGS": "A"})
    arguments = {
        "topic": "TopicTest",
        "queue_id": 3,
        "queue_offset": offset,
        "commit_log_offset": offset * 1000,
        "born_host": "127.0.0.1:40000",
        "store_host": "127.0.0.1:10911",
        "properties": encode_properties(properties),
    }
    return encode_stored(body=body, **{**arguments, **changes})


def replaced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def offsets(decoded: DecodedMessages) -> list[int]:
    return [message.queue_offset for message in decoded.messages]


def int32(value: int) -> bytes:
    return struct.pack(">i", value)


def inner_batch(offset: int, count: int = 3, **changes: Any) -> bytes:
    body = b"".join(
        encode_batch_message(
            f"inner{index}".encode(), index, encode_properties({"UNIQ_KEY": f"K{index}", "TAGS": "AB"[index % 2]})
        )
        for index in range(count)
    )
    arguments = {
        "sys_flag": BATCH_FLAGS,
        "properties": {"INNER_NUM": str(count), "WAIT": "false"},
        "reconsume_times": 4,
        **changes,
    }
    return record(offset, body, **arguments)
