"""Batch bodies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import INT32, any_properties, bodies, damaged, fuzz

from rmq_protocol.batch import BATCH_OVERHEAD, BatchRecord, check_batch, decode_batch, encode_batch_message
from rmq_protocol.errors import InvalidMessageError, RemoteProtocolError
from rmq_protocol.message import Message
from rmq_protocol.properties import encode_properties

batch_records = st.lists(st.builds(BatchRecord, INT32, bodies, any_properties.map(encode_properties)), max_size=6)


def encode(records: list[BatchRecord]) -> bytes:
    return b"".join(encode_batch_message(record.body, record.flag, record.properties) for record in records)


@given(batch_records)
@fuzz
def test_round_trip(records: list[BatchRecord]) -> None:
    encoded = encode(records)
    assert decode_batch(encoded) == records
    assert len(encoded) == sum(BATCH_OVERHEAD + len(record.body) + len(record.properties) for record in records)


@given(damaged(batch_records.map(encode)))
@fuzz
def test_damaged_bodies_decode_or_raise_our_error(data: bytes) -> None:
    try:
        records = decode_batch(data)
    except RemoteProtocolError:
        return
    assert len(encode(records)) == len(data)


MESSAGE = encode_batch_message(b"body", 7, b"a\x01b\x02")


@pytest.mark.parametrize("cut", range(1, len(MESSAGE)))
def test_a_message_cut_short_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_batch(MESSAGE[:cut])
    with pytest.raises(RemoteProtocolError):
        decode_batch(MESSAGE + MESSAGE[:cut])


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x09"])
def test_a_body_length_that_cannot_be_true_is_named(length: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"body length {int.from_bytes(length, 'big', signed=True)}"):
        decode_batch(MESSAGE[:16] + length + MESSAGE[20:])


@pytest.mark.parametrize("length", [b"\xff\xff", b"\x80\x00", b"\x00\x05"])
def test_a_properties_length_that_cannot_be_true_is_named(length: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="properties length"):
        decode_batch(MESSAGE[:24] + length + MESSAGE[26:])


def test_the_three_fields_that_are_not_read_are_not_believed() -> None:
    assert decode_batch(b"\xff" * 12 + MESSAGE[12:]) == [BatchRecord(7, b"body", b"a\x01b\x02")]


def test_the_number_of_messages_can_be_bounded() -> None:
    assert len(decode_batch(MESSAGE * 3, 3)) == 3
    with pytest.raises(RemoteProtocolError, match="at most 2 messages, this one has more"):
        decode_batch(MESSAGE * 3, 2)


@pytest.mark.parametrize(
    ("body", "flag", "properties", "word"),
    [
        (b"x", 0, bytes(32768), "32768 bytes, the limit is 32767"),
        (b"x", 2**31, b"", "flag"),
        (b"x", "1", b"", "flag"),
        (None, 0, b"", "NoneType"),
        ("x", 0, b"", "str"),
    ],
)
def test_what_does_not_fit_is_refused(body: Any, flag: Any, properties: bytes, word: str) -> None:
    with pytest.raises(InvalidMessageError, match=word):
        encode_batch_message(body, flag, properties)


@pytest.mark.parametrize(
    ("messages", "word"),
    [
        ([], "at least one"),
        ([Message("A", b"x"), Message("B", b"x")], "one topic"),
        ([Message("A", b"x"), Message("A", b"x", wait_store=False)], "wait_store"),
        ([Message("A", b"x", delay_level=1)], "delayed"),
        ([Message("A", b"x"), Message("A", b"x", delay=0)], "delayed"),
        ([Message("A", b"x", deliver_at=1.0)], "delayed"),
        ([Message("%RETRY%g", b"x")], "retry"),
    ],
)
def test_messages_that_cannot_share_a_batch_are_refused(messages: list[Message], word: str) -> None:
    with pytest.raises(InvalidMessageError, match=word):
        check_batch(messages)


def test_messages_that_can_share_a_batch() -> None:
    check_batch([Message("A", b"x", tags="t"), Message("A", b"y", keys="k", properties={"a": "b"})])
