"""Hypothesis strategies for messages, their parts and damaged bytes; decompression bombs and a measure of what they cost."""

from __future__ import annotations

import os
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lz4.frame
import zstandard
from hypothesis import settings
from hypothesis import strategies as st

from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.constants import SysFlag
from rmq_protocol.properties import RESERVED_NAMES, encode_properties
from rmq_protocol.stored import encode_stored

MIB = 1 << 20
ALL_KINDS = list(CompressionType)
fuzz = settings(max_examples=int(os.environ.get("RMQ_FUZZ_EXAMPLES", "40")), deadline=None, print_blob=True)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
bodies = st.binary(max_size=300)
texts = st.text(st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
visible_texts = texts.filter(lambda text: text.strip("".join(map(chr, range(33)))))
user_properties = st.dictionaries(visible_texts.filter(lambda name: name not in RESERVED_NAMES), visible_texts, max_size=6)
any_properties = st.dictionaries(texts, texts, max_size=6)
topics = st.text("abcXYZ019%|_-", min_size=1, max_size=127)
long_topics = st.text("abcXYZ019%|_-", min_size=128, max_size=255)

hosts = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)).map(lambda host: f"{host[0]}:{host[1]}"),
    st.tuples(st.ip_addresses(v=6).filter(lambda ip: ip.ipv4_mapped is None), st.integers(0, 65535)).map(
        lambda host: f"[{host[0]}]:{host[1]}"
    ),
)
kinds = st.sampled_from(ALL_KINDS)


@st.composite
def stored_records(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``encode_stored`` for a sound record that is no inner batch, and what decoding must give besides."""
    body = draw(bodies)
    sys_flag = int(
        draw(st.sampled_from([SysFlag(0), SysFlag.MULTI_TAGS, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_PREPARED]))
    )
    packed = body
    if body and draw(st.booleans()):
        kind = draw(kinds)
        packed = compress(body, kind)
        sys_flag |= SysFlag.COMPRESSED | kind
    return {
        "topic": draw(st.one_of(topics, long_topics)),
        "body": packed,
        "plain": body,
        "properties": draw(any_properties),
        "queue_id": draw(INT32),
        "queue_offset": draw(INT64),
        "commit_log_offset": draw(INT64),
        "flag": draw(INT32),
        "sys_flag": sys_flag,
        "born_time_ms": draw(INT64),
        "born_host": draw(hosts),
        "store_time_ms": draw(INT64),
        "store_host": draw(hosts),
        "reconsume_times": draw(INT32),
        "prepared_transaction_offset": draw(INT64),
    }


def encode(record: dict[str, Any], **changes: Any) -> bytes:
    """The bytes of a record out of ``stored_records``."""
    arguments = {**record, **changes}
    del arguments["plain"]
    arguments["properties"] = encode_properties(arguments["properties"])
    return encode_stored(**arguments)


@st.composite
def damaged(draw: st.DrawFn, sound: st.SearchStrategy[bytes]) -> bytes:
    """Sound bytes with a few changed, cut out, doubled or cut off."""
    data = bytearray(draw(sound))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        length = draw(st.integers(1, 8))
        change = draw(st.sampled_from(["set", "cut", "double", "end", "insert"]))
        if change == "set":
            data[at : at + length] = draw(st.binary(min_size=length, max_size=length))
        elif change == "cut":
            del data[at : at + length]
        elif change == "double":
            data[at:at] = data[at : at + length]
        elif change == "end":
            del data[at:]
        else:
            data[at:at] = draw(st.sampled_from([b"\x00" * 4, b"\xff" * 4, b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"]))
    return bytes(data)


@contextmanager
def traced_peak(limit: int) -> Iterator[None]:
    """Python's allocations inside stay below ``limit`` bytes at any time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak / MIB:.1f} MiB"


def bomb(kind: CompressionType, size: int) -> bytes:
    """Zeros, as small as the format allows, made without holding them."""
    step = bytes(MIB)
    if kind == CompressionType.LZ4:
        with lz4.frame.LZ4FrameCompressor(block_linked=True) as compressor:
            return b"".join([compressor.begin(), *(compressor.compress(step) for _ in range(size // MIB)), compressor.flush()])
    stream: Any = zlib.compressobj(9) if kind == CompressionType.ZLIB else zstandard.ZstdCompressor(level=9).compressobj()
    return b"".join([*(stream.compress(step) for _ in range(size // MIB)), stream.flush()])
