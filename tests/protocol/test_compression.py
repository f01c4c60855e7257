"""Compression: round trips, damage, and the bound on what decompression may cost."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from strategies_messages import ALL_KINDS, MIB, bomb, damaged, fuzz, kinds, traced_peak

import rmq_protocol
from rmq_protocol import compression
from rmq_protocol.compression import CompressionType, compress, compression_type, decompress
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError

pytestmark = pytest.mark.interpreters

SIZES = [0, 1, 100, 65536, MIB - 1, MIB, MIB + 1, 2 * MIB, 5_000_001]


@pytest.fixture(params=[True, False], ids=["isal", "zlib"])
def with_and_without_isal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(compression, "isal_zlib", None)


@pytest.mark.usefixtures("with_and_without_isal")
@pytest.mark.parametrize("kind", ALL_KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_round_trip_on_both_sides_of_every_step(kind: CompressionType, size: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    for body in (bytes(size), random.Random(seed).randbytes(size)):
        packed = compress(body, kind)
        unpacked = decompress(packed, kind)
        assert unpacked == body
        assert type(unpacked) is bytes
        assert decompress(packed, kind, size) == body
        if size:
            with pytest.raises(CorruptMessageError, match=f"more than {size - 1} bytes"):
                decompress(packed, kind, size - 1)


@given(st.binary(max_size=2000), kinds, st.integers(1, 9))
@fuzz
def test_round_trip_at_every_level(body: bytes, kind: CompressionType, level: int) -> None:
    assert decompress(compress(body, kind, level), kind, len(body)) == body


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_zlib_output_is_read_by_zlib_and_the_others_by_their_own(kind: CompressionType) -> None:
    body = b"RocketMQ compresses me. " * 500
    readers: dict[CompressionType, Any] = {
        CompressionType.ZLIB: zlib.decompress,
        CompressionType.LZ4: lz4.frame.decompress,
        CompressionType.ZSTD: zstandard.ZstdDecompressor().decompress,
    }
    packed = compress(body, kind)
    assert readers[kind](packed) == body
    assert len(packed) < len(body) // 10


def test_lz4_frames_have_independent_blocks_as_the_java_reader_demands() -> None:
    assert compress(bytes(10 * MIB), CompressionType.LZ4)[4] & 0x20


@given(damaged(st.tuples(st.binary(max_size=300), kinds).map(lambda pair: compress(*pair))), kinds)
@fuzz
def test_damaged_data_gives_a_body_or_our_error(packed: bytes, kind: CompressionType) -> None:
    try:
        body = decompress(packed, kind, 10_000)
    except CorruptMessageError:
        return
    assert len(body) <= 10_000


@given(st.binary(max_size=100), kinds)
@fuzz
def test_any_bytes_give_a_body_or_our_error(packed: bytes, kind: CompressionType) -> None:
    prefix = {
        CompressionType.ZSTD: b"\x28\xb5\x2f\xfd",
        CompressionType.LZ4: b"\x04\x22\x4d\x18",
        CompressionType.ZLIB: b"\x78\x5e",
    }
    for data in (packed, prefix[kind] + packed):
        try:
            body = decompress(data, kind, 10_000)
        except CorruptMessageError:
            continue
        assert len(body) <= 10_000


@pytest.mark.usefixtures("with_and_without_isal")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_data_cut_short_anywhere_is_refused(kind: CompressionType) -> None:
    packed = compress(b"RocketMQ compresses me. " * 20 + random.Random(1).randbytes(50), kind)
    for cut in range(len(packed)):
        with pytest.raises(CorruptMessageError):
            decompress(packed[:cut], kind)


@pytest.mark.usefixtures("with_and_without_isal")
def test_a_wrong_checksum_inside_the_data_is_seen() -> None:
    packed = bytearray(compress(b"hello" * 100, CompressionType.ZLIB))
    packed[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="cannot be decompressed"):
        decompress(bytes(packed), CompressionType.ZLIB)


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_frames_one_after_the_other_are_one_body(kind: CompressionType) -> None:
    packed = compress(b"one ", kind) + compress(b"two ", kind) + compress(bytes(3 * MIB), kind)
    assert decompress(packed, kind) == b"one two " + bytes(3 * MIB)
    with pytest.raises(CorruptMessageError):
        decompress(packed + b"no frame", kind)


def test_zstd_frames_of_every_form_are_walked() -> None:
    body = random.Random(2).randbytes(300_000) + bytes(300_000)
    parameters = [
        {"write_content_size": size, "write_checksum": check, "window_log": window}
        for size in (True, False)
        for check in (True, False)
        for window in (10, 17, 23)
    ]
    for one in parameters:
        compressor = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(**one)).compressobj()
        packed = compressor.compress(body) + compressor.flush()
        assert decompress(packed, CompressionType.ZSTD) == body
        skippable = b"\x52\x2a\x4d\x18\x05\x00\x00\x00hello"
        assert decompress(skippable + packed + skippable, CompressionType.ZSTD) == body
        with pytest.raises(CorruptMessageError):
            decompress(packed + skippable[:-1], CompressionType.ZSTD)


def test_the_content_size_a_zstd_frame_claims_is_not_believed() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(bytes(1000)))
    assert packed[4] >> 6 == 1  # two bytes of content size, 256 less
    packed[5:7] = b"\xff\xff"
    with pytest.raises(CorruptMessageError):
        decompress(bytes(packed), CompressionType.ZSTD)


def test_a_zstd_window_beyond_the_bound_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = compressor.compress(b"x" * 100) + compressor.flush()
    with pytest.raises(CorruptMessageError, match="cannot be decompressed"):
        decompress(packed, CompressionType.ZSTD)


@pytest.mark.usefixtures("with_and_without_isal")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_bomb_costs_less_memory_than_the_bound(kind: CompressionType) -> None:
    packed = bomb(kind, 256 * MIB)
    decompress(compress(b"x", kind), kind)
    with traced_peak(6 * MIB), pytest.raises(CorruptMessageError, match="more than 16777216 bytes"):
        decompress(packed, kind)
    started = time.process_time()
    with pytest.raises(CorruptMessageError):
        decompress(packed, kind)
    assert time.process_time() - started < 0.1


@pytest.mark.usefixtures("with_and_without_isal")
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_a_body_as_large_as_the_bound_costs_its_own_size(kind: CompressionType) -> None:
    packed = bomb(kind, 16 * MIB)
    with traced_peak(20 * MIB):
        assert len(decompress(packed, kind)) == 16 * MIB


def test_the_process_does_not_grow_by_a_bomb() -> None:
    program = """
import resource, sys
from strategies_messages import ALL_KINDS, MIB, bomb
from rmq_protocol.compression import decompress
from rmq_protocol.errors import CorruptMessageError
bombs = [(kind, bomb(kind, 128 * MIB)) for kind in ALL_KINDS]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
for kind, packed in bombs * 3:
    try:
        decompress(packed, kind)
    except CorruptMessageError:
        continue
    sys.exit("not refused")
print((peak() - before) * 1024)
"""
    paths = [str(Path(__file__).parent), str(Path(rmq_protocol.__path__[0]).parent)]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{program}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 16 * MIB + 32 * MIB


@pytest.mark.parametrize("kind", [CompressionType.LZ4, CompressionType.ZSTD])
def test_without_the_library_the_error_names_the_extra(kind: CompressionType, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(b"x", kind)
    monkeypatch.setattr(compression, "lz4_frame", None)
    monkeypatch.setattr(compression, "zstandard", None)
    with pytest.raises(LocalProtocolError, match=r"rmq-async\[compression\]"):
        compress(b"x", kind)
    with pytest.raises(CorruptMessageError, match=r"rmq-async\[compression\]"):
        decompress(packed, kind)


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        (CompressionType.ZLIB, 10),
        (CompressionType.ZLIB, "5"),
        (CompressionType.ZSTD, 23),
        (CompressionType.ZSTD, "5"),
        (0x400, 5),
    ],
)
def test_levels_and_types_that_do_not_exist_are_refused(kind: Any, level: Any) -> None:
    with pytest.raises(LocalProtocolError):
        compress(b"x", kind, level)


def test_an_unknown_type_is_refused_by_number() -> None:
    with pytest.raises(LocalProtocolError):
        decompress(b"x", 0x400)  # type: ignore[arg-type]
    with pytest.raises(CorruptMessageError, match="type 5"):
        compression_type(0x501)
    assert compression_type(0x1) is CompressionType.ZLIB
    assert CompressionType.from_name(" Zstd ") is CompressionType.ZSTD
    with pytest.raises(LocalProtocolError, match="gzip"):
        CompressionType.from_name("gzip")
