"""Judges what became of a block of stored records against the official client's result.

``records`` is a second reader of the layout, kept as simple as possible. Where every record is sound, the official result must
be met exactly; where one is damaged, the official client gives up or believes it, ours must report it and deliver the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import crcmod.predefined

from rmq_protocol.batch import decode_batch
from rmq_protocol.compression import compression_type, decompress
from rmq_protocol.errors import RocketMQError
from rmq_protocol.ids import pack_host, pack_offset_id
from rmq_protocol.message import MessageExt
from rmq_protocol.properties import decode_properties
from rmq_protocol.stored import DecodedMessages
from vectors import Outcome, check_bytes

crcmod_crc32 = crcmod.predefined.mkPredefinedCrcFun("crc-32")


class Record(NamedTuple):
    """What ``records`` makes of one record.

    ``sound``: all lengths fit, TOTALSIZE agrees, ports are ports, the CRC is right. ``tags``: of the message or, for an inner
    batch, of each of its messages.
    """

    position: int
    sound: bool
    queue_offset: int = -1
    commit_log_offset: int = -1
    tags: tuple[str | None, ...] = ()
    is_batch: bool = False
    broken_batch: bool = False


def records(block: bytes, *, unwrapped: bool) -> Iterator[Record]:
    """Steps through a block by the fields; the last record may be one whose fields cannot be read."""
    position = 0
    while position < len(block):
        try:
            record, position = read_record(block, position, unwrapped)
        except (struct.error, IndexError, ValueError):
            yield Record(position, sound=False)
            return
        yield record


def read_record(block: bytes, start: int, unwrapped: bool) -> tuple[Record, int]:
    total, magic, crc = struct.unpack_from(">iIi", block, start)
    queue_offset, commit_log_offset, sys_flag = struct.unpack_from(">qqi", block, start + 20)
    born = 16 if sys_flag & 0x10 else 4
    store = 16 if sys_flag & 0x20 else 4
    (born_port,) = struct.unpack_from(">i", block, start + 48 + born)
    (store_port,) = struct.unpack_from(">i", block, start + 60 + born + store)
    position = start + 76 + born + store
    body, position = take(block, position, ">i")
    topic_length = {0xDAA320A7: ">b", 0xDAA320AB: ">h"}.get(magic)
    if topic_length is None:
        raise ValueError(magic)
    _, position = take(block, position, topic_length)
    properties, position = take(block, position, ">h")
    plain = body
    readable = True
    if sys_flag & 1 and body:
        try:
            plain = decompress(body, compression_type(sys_flag))
        except RocketMQError:
            readable = False
    checksums = {crcmod_crc32(body) & 0x7FFFFFFF, crcmod_crc32(plain) & 0x7FFFFFFF}
    ports = 0 <= born_port <= 0xFFFF and 0 <= store_port <= 0xFFFF
    sound = total == position - start and crc in checksums and readable and ports
    tags: tuple[str | None, ...] = (decode_properties(properties).get("TAGS"),)
    is_batch = unwrapped and sys_flag & 0xC0 == 0xC0
    inner = None
    if is_batch and plain:
        with suppress(RocketMQError):
            inner = decode_batch(plain)
            tags = tuple(decode_properties(one.properties).get("TAGS") for one in inner)
    return Record(start, sound, queue_offset, commit_log_offset, tags, inner is not None, is_batch and inner is None), position


def take(block: bytes, position: int, length_format: str) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(length_format, block, position)
    begin = position + struct.calcsize(length_format)
    if length < 0 or begin + length > len(block):
        raise ValueError(length)
    return block[begin : begin + length], begin + length


def official_view(message: MessageExt, expected: dict[str, Any]) -> dict[str, Any]:
    """``message`` in the form of the vectors, its body checked; ids that the official client gives none are ours alone."""
    check_bytes(message.body, expected["body"])

    def host(text: str, like: dict[str, Any]) -> dict[str, Any]:
        ip, port = pack_host(text)
        return {**like, "ip_hex": ip.hex(), "port": port}

    view = {
        "topic": message.topic,
        "queueId": message.queue.queue_id,
        "flag": message.flag,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "sysFlag": message.sys_flag,
        "bornTimestamp": message.born_time_ms,
        "bornHost": host(message.born_host, expected["bornHost"]),
        "storeTimestamp": message.store_time_ms,
        "storeHost": host(message.store_host, expected["storeHost"]),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "storeSize": message.store_size,
        "body": expected["body"],
        "properties": message.properties,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "tags": message.tags,
        "keys": message.properties.get("KEYS"),
        "transactionId": message.transaction_id,
        "waitStoreMsgOK": message.wait_store,
        "delayTimeLevel": message.delay_level,
        "brokerName": message.queue.broker_name or None,
    }
    if departs_in_ids(expected):
        for name in ("msgId", "offsetMsgId"):
            if name == "offsetMsgId" or "UNIQ_KEY" not in message.properties:
                assert view[name] == pack_offset_id(message.store_host, message.commit_log_offset)
                view[name] = expected[name]
    return {name: view[name] for name in expected}


def departs_in_ids(expected: dict[str, Any]) -> bool:
    """Where ours are better: messages of an inner batch, which have none, and IPv4 hosts written as IPv6."""
    mapped = expected["sysFlag"] & 0x20 and len(expected["storeHost"]["ip_hex"]) == 8
    return expected["offsetMsgId"] is None or bool(mapped)


def official(expected: dict[str, Any]) -> dict[str, Any]:
    return {**expected, "properties": expected["properties"] or {}}


def assert_same(messages: tuple[MessageExt, ...], expected: list[dict[str, Any]]) -> None:
    assert len(messages) == len(expected)
    for message, one in zip(messages, expected, strict=True):
        assert official_view(message, one) == official(one)
        assert message.keys == tuple(key for key in (one["keys"] or "").split(" ") if key)


def assert_among(messages: list[MessageExt], expected: list[dict[str, Any]]) -> None:
    """All the expected ones are there, in order; others may stand between them."""
    rest = iter(messages)
    for one in expected:
        place = (one["queueOffset"], one["commitLogOffset"])
        message = next((message for message in rest if (message.queue_offset, message.commit_log_offset) == place), None)
        assert message is not None, f"the message at {place} is missing"
        assert official_view(message, one) == official(one)


def check_block(
    block: bytes,
    ours: DecodedMessages,
    expected: list[dict[str, Any]],
    *,
    unwrapped: bool = False,
    delta: int = 0,
    tags: frozenset[str] | None = None,
) -> Outcome:
    """``unwrapped``: inner batches were to be expanded. ``delta``: added to offsets. ``tags``: only these were to be kept."""
    read = list(records(block, unwrapped=unwrapped))
    a_batch_is_broken = any(record.broken_batch for record in read)
    if all(record.sound for record in read) and not a_batch_is_broken:
        assert ours.corrupt == ()
        assert_same(ours.messages, expected)
        return Outcome.DIFFERS if any(departs_in_ids(one) for one in expected) else Outcome.EQUAL
    first_damaged = next((record.position for record in read if not record.sound), None)
    assert first_damaged is None or first_damaged in {error.position for error in ours.corrupt}
    messages, kept = list(ours.messages), []
    for record, given in align(read, expected, delta, tags):
        if record.sound and record.is_batch and a_batch_is_broken:
            # The official client expands none when it cannot expand one; ours expands this one.
            mine = [message for message in messages if message.commit_log_offset == record.commit_log_offset]
            assert len(mine) >= wanted(record, tags)
            messages = [message for message in messages if message not in mine]
        elif record.sound:
            kept += given
    assert_among(messages, kept)
    for message in messages:  # others may follow behind a damaged record, where the official client has given up
        assert struct.pack(">q", message.commit_log_offset) in block
    return Outcome.EQUAL if len(ours.messages) == len(kept) == len(expected) else Outcome.DIFFERS


def wanted(record: Record, tags: frozenset[str] | None) -> int:
    return len(record.tags) if tags is None else sum(tag in tags for tag in record.tags)


def align(
    read: list[Record], expected: list[dict[str, Any]], delta: int, tags: frozenset[str] | None
) -> Iterator[tuple[Record, list[dict[str, Any]]]]:
    """Which of the official messages came out of which record, in order."""
    rest = list(expected)
    for record in read:
        given: list[dict[str, Any]] = []
        while (
            rest
            and len(given) < wanted(record, tags)
            and rest[0]["commitLogOffset"] == record.commit_log_offset
            and 0 <= rest[0]["queueOffset"] - delta - record.queue_offset < len(record.tags)
        ):
            given.append(rest.pop(0))
        yield record, given
