"""CRC32 against crcmod, which shares no code with zlib or isal."""

from __future__ import annotations

import random

import crcmod.predefined
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import fuzz

from rmq_protocol.checksum import crc32, crc_property
from rmq_protocol.properties import decode_properties

oracle = crcmod.predefined.mkPredefinedCrcFun("crc-32")


@given(st.binary(max_size=2000))
@fuzz
def test_equal_to_crcmod_with_the_top_bit_cleared(body: bytes) -> None:
    assert crc32(body) == oracle(body) & 0x7FFFFFFF
    assert crc32(memoryview(body)) == crc32(bytearray(body)) == crc32(body)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 4096, 65535, 1 << 20])
def test_equal_to_crcmod_on_both_sides_of_where_the_implementation_changes(size: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    body = random.Random(seed).randbytes(size)
    assert crc32(body) == oracle(body) & 0x7FFFFFFF


@given(st.integers(0, 2**31 - 1))
@fuzz
def test_the_crc_property_holds_ten_digits_the_least_significant_first(checksum: int) -> None:
    value = decode_properties(crc_property(checksum))["__CRC32#"]
    assert len(value) == 10
    assert int(value[::-1]) == checksum
