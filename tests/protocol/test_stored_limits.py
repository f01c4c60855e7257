"""What hostile blocks of stored records may cost: time, memory, and the records around them."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from stored_samples import BATCH_FLAGS, BODY_LENGTH, COMPRESSED, CRC, inner_batch, int32, offsets, record, replaced
from strategies_messages import ALL_KINDS, MIB, bomb, traced_peak

from rmq_protocol.batch import encode_batch_message
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import BLANK_MAGIC_CODE, MAGIC_CODE_V1
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_messages, decode_pull, encode_stored

TINY = record(1, b"", topic="", properties={})
TINY_V6 = record(1, b"", topic="", properties={}, born_host="[::1]:1", store_host="[::2]:2")
TINY_INNER = encode_batch_message(b"", 0, b"")
LIMIT = 4 * MIB


def filled(one: bytes) -> bytes:
    return one * (LIMIT // len(one))


def compressed(body: bytes, kind: CompressionType, **changes: Any) -> bytes:
    return record(1, body, **{"sys_flag": COMPRESSED | kind, **changes})


def hosts_never_seen() -> bytes:
    generator = random.Random(7)
    return b"".join(
        replaced(replaced(TINY_V6, 48, generator.randbytes(16)), 76, generator.randbytes(16))
        for _ in range(LIMIT // len(TINY_V6))
    )


def many_properties() -> bytes:
    properties = b"".join(b"%c%c\x01x\x02" % (33 + i % 90, 33 + i // 90 % 90) for i in range(6000))
    return filled(encode_stored(topic="T", body=b"", properties=properties))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: bytes(LIMIT),
    "ones": lambda: b"\xff" * LIMIT,
    "random bytes": lambda: random.Random(7).randbytes(LIMIT),
    "smallest fillers": lambda: filled(struct.pack(">ii", 8, BLANK_MAGIC_CODE)),
    "magic codes 8 bytes apart": lambda: filled(struct.pack(">ii", 8, MAGIC_CODE_V1)),
    "magic codes 91 bytes apart": lambda: filled(struct.pack(">ii", 91, MAGIC_CODE_V1) + b"\xff" * 83),
    "smallest records": lambda: filled(TINY),
    "smallest records with wrong CRC": lambda: filled(replaced(TINY, CRC, int32(1))),
    "records with hosts never seen": hosts_never_seen,
    "bodies that reach over half the block": lambda: filled(replaced(TINY, BODY_LENGTH, int32(LIMIT // 2))),
    "wrong TOTALSIZE each": lambda: filled(replaced(TINY, 0, int32(len(TINY) * 2))),
    "many properties": many_properties,
    "one inner batch of the smallest messages": lambda: record(1, TINY_INNER * (LIMIT // 22 - 20), sys_flag=BATCH_FLAGS),
    "bombs just within the bound": lambda: filled(compressed(bomb(CompressionType.ZLIB, 16 * MIB), CompressionType.ZLIB)),
    "zlib bombs": lambda: filled(compressed(bomb(CompressionType.ZLIB, 17 * MIB), CompressionType.ZLIB)),
    "lz4 bombs": lambda: filled(compressed(bomb(CompressionType.LZ4, 17 * MIB), CompressionType.LZ4)),
    "zstd bombs": lambda: filled(compressed(bomb(CompressionType.ZSTD, 17 * MIB), CompressionType.ZSTD)),
    "damaged zstd": lambda: filled(compressed(compress(bytes(100), CompressionType.ZSTD)[:-1], CompressionType.ZSTD)),
    "zstd bombs damaged at the end": lambda: filled(
        compressed(bomb(CompressionType.ZSTD, 15 * MIB) + b"\x28\xb5\x2f\xfd\x00\x58\x0d\x00\x00\xff", CompressionType.ZSTD)
    ),
    "compressed batches of countless messages": lambda: filled(
        compressed(
            compress(TINY_INNER * 700_000, CompressionType.ZLIB, 9),
            CompressionType.ZLIB,
            sys_flag=COMPRESSED | CompressionType.ZLIB | BATCH_FLAGS,
        )
    ),
}


EXPANDED = [name for name in HOSTILE if "bomb" in name or "zstd" in name or "compressed" in name]
"""Blocks of which ``allow_partial`` leaves out what does not fit the bound; of the others it changes nothing."""


@pytest.mark.parametrize(
    ("name", "allow_partial"),
    [*[pytest.param(name, True, id=f"partial-{name}") for name in HOSTILE],
     *[pytest.param(name, False, id=f"whole-{name}") for name in EXPANDED]],
)  # fmt: skip
def test_no_block_of_4_mib_takes_longer_than_four_seconds(name: str, allow_partial: bool) -> None:
    data = HOSTILE[name]()
    started = time.thread_time()
    decode_messages(data, allow_partial=allow_partial)
    assert time.thread_time() - started < 4, "some take 2 s where other processes share the caches"


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_bombs_do_not_hide_the_records_around_them_and_stay_within_the_bound(kind: CompressionType) -> None:
    large = record(2, bomb(kind, 20 * MIB), sys_flag=COMPRESSED | kind)
    plain = record(1, compress(b"hello", kind), sys_flag=COMPRESSED | kind)
    block = (plain + large) * 5 + plain
    with traced_peak(8 * MIB):
        decoded = decode_messages(block)
    assert offsets(decoded) == [1] * 6
    assert [error.queue_offset for error in decoded.corrupt] == [2] * 5
    assert all("16777" in str(error) for error in decoded.corrupt)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_many_small_bombs_together_stay_within_the_bound(kind: CompressionType) -> None:
    packed = compress(bytes(6 * MIB), kind)
    block = b"".join(record(offset, packed, sys_flag=COMPRESSED | kind) for offset in range(10)) + record(10)
    with traced_peak(16 * MIB + 8 * MIB + len(block)):
        decoded = decode_messages(block)
    assert offsets(decoded) == [0, 1, 10]
    assert [error.queue_offset for error in decoded.corrupt] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert decoded.resume_at is None


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_what_does_not_fit_can_be_fetched_by_further_calls(kind: CompressionType) -> None:
    packed = compress(b"x" * 600, kind)
    records = [record(offset, packed, sys_flag=COMPRESSED | kind) for offset in range(10)] + [record(10)]
    first, calls, read = 0, 0, []
    while first is not None:
        decoded = decode_messages(b"".join(records[first:]), max_decompressed_size=2000, allow_partial=True)
        assert decoded.corrupt == ()
        assert decoded.messages
        read += offsets(decoded)
        first, calls = decoded.resume_at, calls + 1
    assert read == list(range(11))
    assert calls == 4


def test_the_place_to_resume_counts_as_the_client_counts() -> None:
    packed = compress(b"x" * 600, CompressionType.ZLIB)
    block = b"".join(record(offset, packed, sys_flag=COMPRESSED) for offset in range(3))
    queue = MessageQueue("T", "b", 0)
    decoded = decode_pull(block, queue, offset_delta=100, max_decompressed_size=1000, allow_partial=True)
    assert offsets(decoded) == [100]
    assert decoded.resume_at == 101


def test_a_compressed_batch_of_countless_messages_is_not_expanded_but_small_ones_are() -> None:
    one = encode_batch_message(b"", 0, b"")
    countless = record(1, compress(one * 500_000, CompressionType.ZLIB, 9), sys_flag=COMPRESSED | BATCH_FLAGS)
    with traced_peak(40 * MIB):
        decoded = decode_messages(countless + inner_batch(5))
    assert offsets(decoded) == [1, 5, 6, 7]
    assert len(decoded.messages[0].body) == 11_000_000
