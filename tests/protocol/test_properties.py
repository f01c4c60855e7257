"""The properties text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import any_properties, damaged, fuzz

from rmq_protocol.errors import InvalidMessageError
from rmq_protocol.properties import decode_properties, encode_properties, properties_text


@given(any_properties)
@fuzz
def test_round_trip(properties: dict[str, str]) -> None:
    encoded = encode_properties(properties)
    assert decode_properties(encoded) == properties
    assert decode_properties(encoded.decode()) == properties
    assert decode_properties(encoded[:-1]) == properties  # the last separator may be missing


@given(damaged(any_properties.map(encode_properties)))
@fuzz
def test_damaged_text_gives_entries_and_never_raises(data: bytes) -> None:
    for name, value in decode_properties(data).items():
        assert name
        assert value
        assert "\x02" not in name + value


@given(st.binary(max_size=200))
@fuzz
def test_any_bytes_can_be_read(data: bytes) -> None:
    decoded = decode_properties(data)
    assert decode_properties(properties_text(decoded)) == decoded


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    assert decode_properties(b"a\x01\xff\x02b\x01c\x02") == {"a": "\ufffd", "b": "c"}


def test_values_that_are_none_are_left_out_and_empty_ones_lost_on_the_way() -> None:
    assert encode_properties({"a": None, "b": "", "c": "d"}) == b"b\x01\x02c\x01d\x02"
    assert decode_properties(b"b\x01\x02c\x01d\x02") == {"c": "d"}


def test_the_limit_is_counted_in_bytes_and_named() -> None:
    assert len(encode_properties({"a": "é" * 16382})) == 32767
    with pytest.raises(InvalidMessageError, match=r"32769 bytes, the limit is 32767") as caught:
        encode_properties({"a": "é" * 16383})
    assert caught.value.code == 13


def test_lone_surrogates_have_no_form_on_the_wire() -> None:
    with pytest.raises(InvalidMessageError, match="UTF-8"):
        encode_properties({"a": "\ud800"})
