"""Stored records: layouts, inner batches, and what one bad record may cost its neighbours (reliability rows 7 to 9)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_samples import (
    BATCH_FLAGS,
    BODY,
    BODY_LENGTH,
    COMPRESSED,
    CRC,
    SYS_FLAG,
    inner_batch,
    int32,
    offsets,
    record,
    replaced,
)
from strategies_messages import ALL_KINDS, bodies, damaged, encode, fuzz, kinds, stored_records

from rmq_protocol.batch import encode_batch_message
from rmq_protocol.checksum import crc32
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import BLANK_MAGIC_CODE, MAGIC_CODE_V1, MAGIC_CODE_V2, SysFlag
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.stored import DecodedMessages, decode_messages, decode_pull, encode_stored, parse_tags

# ------------------------------------------------------------------------------------------------------------ sound blocks


@given(st.lists(stored_records(), max_size=5))
@fuzz
def test_round_trip_of_both_layouts_and_address_families(given_records: list[dict[str, Any]]) -> None:
    encoded = [encode(one) for one in given_records]
    decoded = decode_messages(b"".join(encoded), topic_queue_broker="broker-a")
    assert decoded.corrupt == ()
    assert decoded.resume_at is None
    assert len(decoded.messages) == len(given_records)
    for message, one, data in zip(decoded.messages, given_records, encoded, strict=True):
        v6 = (0x10 if one["born_host"].startswith("[") else 0) | (0x20 if one["store_host"].startswith("[") else 0)
        compressed_bit = one["sys_flag"] & COMPRESSED
        assert message == MessageExt(
            topic=one["topic"],
            body=one["plain"],
            flag=one["flag"],
            properties=one["properties"],
            queue=MessageQueue(one["topic"], "broker-a", one["queue_id"]),
            queue_offset=one["queue_offset"],
            commit_log_offset=one["commit_log_offset"],
            sys_flag=(one["sys_flag"] | v6) & ~compressed_bit,
            body_crc=crc32(one["body"]),
            store_size=len(data),
            born_time_ms=one["born_time_ms"],
            store_time_ms=one["store_time_ms"],
            born_host=one["born_host"],
            store_host=one["store_host"],
            reconsume_times=one["reconsume_times"],
            prepared_transaction_offset=one["prepared_transaction_offset"],
        )
        assert data[4:8] == int32(MAGIC_CODE_V1 if len(one["topic"]) <= 127 else MAGIC_CODE_V2)


@pytest.mark.parametrize("version", [1, 2])
def test_the_layout_can_be_chosen(version: int) -> None:
    decoded = decode_messages(record(1, version=version))
    assert offsets(decoded) == [1]
    assert decoded.messages[0].store_size == len(record(1)) + version - 1


def test_an_empty_block_holds_nothing() -> None:
    assert decode_messages(b"") == ((), (), None)


def test_blocks_of_other_buffer_types_are_read() -> None:
    data = record(1)
    assert offsets(decode_messages(memoryview(data))) == offsets(decode_messages(bytearray(data))) == [1]  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_after_decompression_bit_0_is_cleared_and_the_type_bits_stay(kind: CompressionType) -> None:
    decoded = decode_messages(record(1, compress(b"hello", kind), sys_flag=COMPRESSED | kind))
    assert decoded.messages[0].body == b"hello"
    assert decoded.messages[0].sys_flag == kind


def test_type_bits_alone_decompress_nothing() -> None:
    decoded = decode_messages(record(1, b"hello", sys_flag=CompressionType.ZSTD))
    assert decoded.messages[0].body == b"hello"
    assert decoded.messages[0].sys_flag == CompressionType.ZSTD


def test_an_empty_body_is_not_decompressed_and_keeps_bit_0() -> None:
    decoded = decode_messages(record(1, b"", sys_flag=COMPRESSED | CompressionType.ZLIB))
    assert decoded.messages[0].body == b""
    assert decoded.messages[0].sys_flag == COMPRESSED | CompressionType.ZLIB


def test_a_record_encoded_from_a_decoded_message_carries_the_crc_of_the_plain_body() -> None:
    packed = compress(b"hello", CompressionType.ZLIB)
    decoded = decode_messages(record(1, packed, sys_flag=COMPRESSED, body_crc=crc32(b"hello")))
    assert decoded.messages[0].body == b"hello"
    assert decoded.corrupt == ()


def test_blank_fillers_are_skipped() -> None:
    filler = struct.pack(">ii", 100, BLANK_MAGIC_CODE) + bytes(92)
    smallest = struct.pack(">ii", 8, BLANK_MAGIC_CODE)
    decoded = decode_messages(filler + record(1) + smallest + record(2) + smallest)
    assert offsets(decoded) == [1, 2]
    assert decoded.corrupt == ()


def test_topics_and_properties_that_are_not_utf8_are_shown_with_replacement_characters() -> None:
    decoded = decode_messages(record(1).replace(b"TopicTest", b"Topic\xff\xfe\xfdt").replace(b"U1", b"U\xff"))
    assert decoded.messages[0].topic == "Topic\ufffd\ufffd\ufffdt"
    assert decoded.messages[0].properties["UNIQ_KEY"] == "U\ufffd"


def test_records_as_transaction_checks_carry_them_are_read() -> None:
    # MessageDecoder encodes the half message anew: V1, real topic, sysFlag 0, offsets of the current half message.
    properties = {"TRAN_MSG": "true", "PGROUP": "g", "UNIQ_KEY": "U7", "WAIT": "false", "TRANSACTION_CHECK_TIMES": "1"}
    decoded = decode_messages(record(7, b"half", topic="orders", version=1, properties=properties))
    message = decoded.messages[0]
    assert (message.topic, message.body, message.msg_id, message.sys_flag) == ("orders", b"half", "U7", 0)
    assert message.wait_store is False
    assert message.transaction_id is None


# ------------------------------------------------------------------------------------------------------------ inner batches


def test_inner_batches_give_their_messages() -> None:
    decoded = decode_messages(record(1) + inner_batch(10) + record(20))
    assert offsets(decoded) == [1, 10, 11, 12, 20]
    first = decoded.messages[1]
    assert (first.body, first.flag, first.msg_id, first.tags, first.topic) == (b"inner0", 0, "K0", "A", "TopicTest")
    assert (first.queue, first.born_host, first.store_host) == (decoded.messages[0].queue, "127.0.0.1:40000", "127.0.0.1:10911")
    assert first.properties == {"UNIQ_KEY": "K0", "TAGS": "A", "WAIT": "false"}
    assert (first.sys_flag, first.commit_log_offset) == (BATCH_FLAGS, 10_000)
    assert (first.body_crc, first.store_size, first.reconsume_times) == (0, 0, 0)
    assert first.offset_msg_id == "7F00000100002A9F0000000000002710"  # of the record it came in


def test_inner_batches_can_be_left_alone() -> None:
    decoded = decode_messages(inner_batch(10), unwrap_batches=False)
    assert offsets(decoded) == [10]
    assert decoded.messages[0].properties["INNER_NUM"] == "3"


@pytest.mark.parametrize("flags", [SysFlag.NEED_UNWRAP, SysFlag.INNER_BATCH])
def test_one_of_the_two_flags_is_not_enough(flags: SysFlag) -> None:
    assert offsets(decode_messages(inner_batch(10, sys_flag=flags.value))) == [10]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_compressed_inner_batches_are_expanded(kind: CompressionType) -> None:
    body = encode_batch_message(b"a" * 100, 1, b"") * 5
    decoded = decode_messages(record(10, compress(body, kind), sys_flag=BATCH_FLAGS | COMPRESSED | kind))
    assert offsets(decoded) == [10, 11, 12, 13, 14]
    assert {message.body for message in decoded.messages} == {b"a" * 100}


@pytest.mark.parametrize("body", [b"", b"no batch at all, but long enough", encode_batch_message(b"a", 0, b"")[:-1]])
def test_a_broken_inner_batch_is_passed_on_as_it_is_and_hides_no_other(body: bytes) -> None:
    decoded = decode_messages(inner_batch(10) + record(20, body, sys_flag=BATCH_FLAGS) + inner_batch(30))
    assert offsets(decoded) == [10, 11, 12, 20, 30, 31, 32]
    assert decoded.messages[3].body == body
    assert decoded.messages[3].sys_flag == BATCH_FLAGS
    assert decoded.corrupt == ()


# -------------------------------------------------------------------------------------------------------------------- pulls


def test_a_pull_completes_its_messages() -> None:
    queue = MessageQueue("orders", "broker-a", 7)
    decoded = decode_pull(record(1) + inner_batch(10, 2), queue, min_offset=5, max_offset=99, offset_delta=1000)
    assert offsets(decoded) == [1001, 1010, 1011]
    assert all(message.queue is queue for message in decoded.messages)
    assert all(message.properties["MIN_OFFSET"] == "5" for message in decoded.messages)
    assert all(message.properties["MAX_OFFSET"] == "99" for message in decoded.messages)


def test_tags_are_compared_as_texts_also_inside_batches() -> None:
    queue = MessageQueue("orders", "broker-a", 7)
    block = (
        record(1, properties={"TAGS": "Aa"})
        + record(2, properties={"TAGS": "BB"})  # the same hash
        + record(3, properties={"a": "b"})
        + inner_batch(10)
    )
    assert offsets(decode_pull(block, queue, tags="Aa || X")) == [1]
    assert offsets(decode_pull(block, queue, tags="A")) == [10, 12]
    assert offsets(decode_pull(block, queue, tags="*")) == [1, 2, 3, 10, 11, 12]


def test_messages_of_a_transaction_get_their_id() -> None:
    queue = MessageQueue("orders", "broker-a", 7)
    block = record(1, properties={"TRAN_MSG": "true", "UNIQ_KEY": "U"}) + record(
        2, properties={"TRAN_MSG": "no", "UNIQ_KEY": "V"}
    )
    assert [message.transaction_id for message in decode_pull(block, queue).messages] == ["U", None]


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, None),
        ("", None),
        ("*", None),
        ("A", {"A"}),
        (" A || B||C ", {"A", "B", "C"}),
        ("A || ", {"A"}),
        (" || ", None),
        ("* || A", {"*", "A"}),
    ],
)
def test_subscription_expressions(expression: str | None, tags: set[str] | None) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", "||||"])
def test_an_expression_of_separators_only_is_refused(expression: str) -> None:
    with pytest.raises(LocalProtocolError):
        parse_tags(expression)


# ------------------------------------------------------------------------------------------------------------- bad records

BAD = record(2)
BAD_V6 = record(2, born_host="[::1]:1", store_host="[::2]:2")
TOPIC = BODY + 5

DAMAGE = {
    "unknown magic": (replaced(BAD, 4, b"\x12\x34\x56\x78"), None),
    "storeSize 0": (replaced(BAD, 0, int32(0)), 2),
    "storeSize negative": (replaced(BAD, 0, int32(-1)), 2),
    "storeSize over the end": (replaced(BAD, 0, int32(1 << 30)), 2),
    "storeSize one too small": (replaced(BAD, 0, int32(len(BAD) - 1)), 2),
    "body length negative": (replaced(BAD, BODY_LENGTH, int32(-5)), 2),
    "body length over the end": (replaced(BAD, BODY_LENGTH, int32(1 << 30)), 2),
    "body length 1 too large": (replaced(BAD, BODY_LENGTH, int32(6)), 2),
    "body length 1 too small": (replaced(BAD, BODY_LENGTH, int32(4)), 2),
    "topic length 255": (replaced(BAD, TOPIC, b"\xff"), 2),
    "topic length 0": (replaced(BAD, TOPIC, b"\x00"), 2),
    "V2 topic length negative": (replaced(record(2, version=2), TOPIC, b"\x80\x00"), 2),
    "properties length over the end": (replaced(BAD, TOPIC + 10, b"\x7f\xff"), 2),
    "properties length negative": (replaced(BAD, TOPIC + 10, b"\xff\xff"), 2),
    "IPv6 flag on IPv4 hosts": (replaced(BAD, SYS_FLAG, int32(0x30)), None),
    "no IPv6 flag on IPv6 hosts": (replaced(BAD_V6, SYS_FLAG, int32(0)), None),
    "V2 read as V1": (replaced(record(2, version=2), 4, int32(MAGIC_CODE_V1)), 2),
    "CRC wrong": (replaced(BAD, CRC, int32(1)), 2),
    "a bit of the body wrong": (replaced(BAD, BODY, b"i"), 2),
    "unknown compression type": (record(2, sys_flag=COMPRESSED | 0x400), 2),
    "no zlib data": (record(2, sys_flag=COMPRESSED), 2),
    "zlib data cut short": (record(2, compress(b"hello" * 9, CompressionType.ZLIB)[:-5], sys_flag=COMPRESSED), 2),
    "port beyond 65535": (replaced(BAD, 52, int32(70000)), 2),
    "port negative": (replaced(BAD, 68, int32(-1)), 2),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_reported_with_its_place_and_hides_no_other(name: str) -> None:
    bad, queue_offset = DAMAGE[name]
    block = record(0) + record(1) + bad + record(3) + record(4)
    decoded = decode_messages(block, topic_queue_broker="broker-a")
    assert offsets(decoded) == [0, 1, 3, 4]
    assert len(decoded.corrupt) == 1
    error = decoded.corrupt[0]
    assert error.position == 2 * len(record(0))
    assert str(error.position) in str(error)
    assert error.broker == "broker-a"
    if queue_offset is not None:
        assert error.queue_offset == queue_offset
        assert error.msg_id in ("U2", "7F00000100002A9F00000000000007D0")


@pytest.mark.parametrize("name", DAMAGE)
def test_several_damaged_records_in_a_row_and_at_both_ends(name: str) -> None:
    bad, _ = DAMAGE[name]
    decoded = decode_messages(bad + bad + record(1) + bad)
    if "storeSize" in name or "body length" in name:
        assert 1 in offsets(decoded)
    assert offsets(decoded) in ([1], [])
    assert decoded.corrupt
    assert decoded.corrupt[0].position == 0


def test_the_message_id_of_a_corrupt_record_is_the_unique_id_where_it_can_be_read() -> None:
    assert decode_messages(DAMAGE["CRC wrong"][0]).corrupt[0].msg_id == "U2"
    assert decode_messages(DAMAGE["topic length 255"][0]).corrupt[0].msg_id == "7F00000100002A9F00000000000007D0"
    assert decode_messages(DAMAGE["unknown magic"][0]).corrupt[0].msg_id is None


def test_a_wrong_crc_is_believed_only_without_a_check() -> None:
    bad = DAMAGE["CRC wrong"][0]
    assert offsets(decode_messages(bad, check_crc=False)) == [2]
    assert offsets(decode_messages(bad)) == []


def test_where_both_ways_lead_to_a_record_the_crc_decides() -> None:
    # A body that looks like a record itself, and a TOTALSIZE that leads into it: the fields are right.
    hidden = record(9, b"z" * 20)
    outer = record(2, bytes(20) + hidden + bytes(20))
    decoded = decode_messages(replaced(outer, 0, int32(BODY + 20)) + record(3))
    assert offsets(decoded) == [3]
    assert [error.queue_offset for error in decoded.corrupt] == [2]
    # A body length that swallows the next record whole: TOTALSIZE is right.
    swallowing = replaced(BAD, BODY_LENGTH, int32(5 + len(BAD)))
    decoded = decode_messages(swallowing + BAD + record(3))
    assert offsets(decoded) == [2, 3]
    assert [error.position for error in decoded.corrupt] == [0]
    # Properties that swallow it: the body is sound, but no text holds a magic code.
    swallowing = replaced(BAD, TOPIC + 10, struct.pack(">h", len(BAD) - TOPIC - 12 + len(BAD)))
    decoded = decode_messages(swallowing + BAD + record(3))
    assert offsets(decoded) == [2, 3]
    assert [error.position for error in decoded.corrupt] == [0]


@pytest.mark.parametrize("whole", [record(2), BAD_V6, record(2, version=2, topic="t" * 200)])
def test_a_block_cut_short_anywhere_gives_the_records_before_the_cut(whole: bytes) -> None:
    for cut in range(1, len(whole)):
        decoded = decode_messages(record(1) + whole[:cut])
        assert offsets(decoded) == [1]
        assert len(decoded.corrupt) == 1
        assert decoded.corrupt[0].position == len(record(1))
        assert decoded.corrupt[0].queue_offset in (None, 2)


@pytest.mark.parametrize("total", [0, 7, -8, 101, 2**31 - 1])
def test_a_filler_with_an_impossible_size_ends_the_block(total: int) -> None:
    decoded = decode_messages(record(1) + struct.pack(">ii", total, BLANK_MAGIC_CODE) + bytes(92))
    assert offsets(decoded) == [1]
    assert "filler" in str(decoded.corrupt[0])


@given(
    st.lists(bodies, min_size=2, max_size=8),
    st.data(),
    st.sampled_from([0, 0x7F, 0x80, 0xFF]),
    st.booleans(),
    kinds | st.none(),
)
@fuzz
def test_one_changed_byte_damages_one_record_at_most(
    some_bodies: list[bytes], data: st.DataObject, value: int, v6: bool, kind: CompressionType | None
) -> None:
    hosts = {"born_host": "[2001:db8::1]:1", "store_host": "[2001:db8::2]:2"} if v6 else {}
    sound = []
    for index, body in enumerate(some_bodies):
        packed = body if kind is None or not body else compress(body, kind)
        sys_flag = 0 if packed is body or kind is None else COMPRESSED | kind
        sound.append(record(index, packed, sys_flag=sys_flag, **hosts))
    victim = data.draw(st.integers(0, len(sound) - 2))
    at = data.draw(st.integers(0, len(sound[victim]) - 1))
    damaged_record = replaced(sound[victim], at, bytes([value]))
    decoded = decode_messages(b"".join([*sound[:victim], damaged_record, *sound[victim + 1 :]]))
    others = [f"U{index}" for index in range(len(sound)) if index != victim]
    bodies_read = {message.msg_id: message.body for message in decoded.messages}
    assert [msg_id for msg_id in bodies_read if msg_id in others] == others
    assert all(bodies_read[msg_id] == some_bodies[int(msg_id[1:])] for msg_id in others)
    assert {error.position for error in decoded.corrupt} <= {sum(map(len, sound[:victim]))}


@given(damaged(st.lists(stored_records().map(encode), max_size=4).map(b"".join)))
@fuzz
def test_damaged_blocks_raise_nothing_and_every_byte_is_accounted_for(data: bytes) -> None:
    for check_crc in (True, False):
        decoded = decode_messages(data, check_crc=check_crc, max_decompressed_size=10_000)
        assert isinstance(decoded, DecodedMessages)
        for error in decoded.corrupt:
            assert isinstance(error, CorruptMessageError)
            assert error.position is not None
            assert 0 <= error.position < len(data)
        for message in decoded.messages:
            assert len(message.body) <= max(10_000, len(data))
            assert message.msg_id is not None
        if data:
            assert decoded.messages or decoded.corrupt
        positions = [error.position or 0 for error in decoded.corrupt]
        assert positions == sorted(set(positions))


@given(st.binary(max_size=400), st.sampled_from([MAGIC_CODE_V1, MAGIC_CODE_V2, BLANK_MAGIC_CODE]), st.integers(-200, 400))
@fuzz
def test_any_bytes_behind_a_magic_code_raise_nothing(data: bytes, magic: int, total: int) -> None:
    block = int32(total) + int32(magic) + data
    decoded = decode_messages(block * 3)
    assert all(error.position is not None for error in decoded.corrupt)


# ---------------------------------------------------------------------------------------------------------------- encoding


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "t" * 128, "version": 1},
        {"topic": "t" * 32768},
        {"topic": "\ud800"},
        {"topic": None},
        {"properties": bytes(32768)},
        {"queue_id": 2**31},
        {"queue_offset": 2**63},
        {"flag": "1"},
        {"born_host": "nowhere"},
        {"store_host": "1.2.3.4:99999"},
        {"body": "text"},
    ],
    ids=repr,
)
def test_what_does_not_fit_its_field_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_stored(**{"topic": "T", "body": b"x", **changes})


def test_the_host_flags_follow_from_the_hosts() -> None:
    for born, store, flags in [("1.2.3.4:5", "[::1]:5", 0x20), ("[::1]:5", "1.2.3.4:5", 0x10), ("[::1]:5", "[::1]:6", 0x30)]:
        message = decode_messages(record(1, born_host=born, store_host=store, sys_flag=0x38)).messages[0]
        assert (message.born_host, message.store_host, message.sys_flag) == (born, store, flags | 0x8)
