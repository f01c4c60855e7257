"""Columns hold what ``decode_pull`` gives, row by row: golden vectors, damaged blocks, and what hypothesis generates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_samples import COMPRESSED, inner_batch, record
from strategies_messages import damaged, encode, fuzz, stored_records
from test_stored import BAD, DAMAGE

from rmq_protocol.columns import (
    BORN_HOST,
    BORN_TIME,
    COMMIT_LOG_OFFSET,
    FLAG,
    QUEUE_OFFSET,
    RECONSUME_TIMES,
    STORE_HOST,
    STORE_TIME,
    SYS_FLAG,
    StoredColumns,
    read_columns,
)
from rmq_protocol.compression import CompressionType, compress
from rmq_protocol.errors import CorruptMessageError, LocalProtocolError
from rmq_protocol.ids import format_host
from rmq_protocol.message import MessageExt, MessageQueue
from rmq_protocol.properties import decode_properties
from rmq_protocol.stored import decode_pull
from vectors import Suite, data, load

QUEUE = MessageQueue("TopicTest", "broker-a", 3)
Row = tuple[Any, ...]


def rows_of(columns: StoredColumns) -> list[Row]:
    bodies = parts(columns.bodies.join(), columns.body_sizes)
    assert columns.size == len(columns.heads.join() + columns.bodies.join() + columns.properties.join())
    numbers = [columns.int64(place) for place in (QUEUE_OFFSET, COMMIT_LOG_OFFSET, BORN_TIME, STORE_TIME)]
    numbers += [columns.int32(place) for place in (SYS_FLAG, FLAG, RECONSUME_TIMES)]
    properties = map(decode_properties, parts(columns.properties.join(), columns.property_sizes))
    hosts = hosts_of(columns, BORN_HOST), hosts_of(columns, STORE_HOST)
    return list(zip(*numbers, *hosts, columns.topics, bodies, properties, strict=True))


def parts(joined: bytes, sizes: Sequence[int]) -> list[bytes]:
    ends = list(accumulate(sizes, initial=0))
    assert ends[-1] == len(joined)
    return [joined[start:end] for start, end in pairwise(ends)]


def hosts_of(columns: StoredColumns, place: int) -> list[str]:
    raw = columns.raw64(place)
    hosts = []
    for row in range(len(columns)):
        address, port = raw[row * 8 : row * 8 + 4], raw[row * 8 + 4 : row * 8 + 8]
        if row in columns.other_hosts:
            assert address == bytes(4)
            address = columns.other_hosts[row][place == STORE_HOST]
        hosts.append(format_host(address, int.from_bytes(port, "big")))
    return hosts


def offsets_of(columns: StoredColumns) -> list[int]:
    return list(columns.int64(QUEUE_OFFSET))


def row_of(message: MessageExt) -> Row:
    return (
        message.queue_offset, message.commit_log_offset, message.born_time_ms, message.store_time_ms, message.sys_flag,
        message.flag, message.reconsume_times, message.born_host, message.store_host, message.topic, message.body,
        message.properties,
    )  # fmt: skip


def contents(errors: tuple[CorruptMessageError, ...]) -> list[tuple[Any, ...]]:
    return [(str(error), error.position, error.msg_id, error.queue_offset, error.broker) for error in errors]


def check_same(block: bytes, tags: str = "*", offset_delta: int | None = None, limit: int = 1 << 24) -> None:
    """Of any queue, and of one queue: records of a pull are then cut by their lengths first."""
    for only_queue in (False, True):
        check_same_of(block, tags, offset_delta, limit, only_queue=only_queue)


def check_same_of(block: bytes, tags: str, offset_delta: int | None, limit: int, *, only_queue: bool) -> None:
    columns = StoredColumns()
    found = read_columns(block, columns, QUEUE, tags=tags, offset_delta=offset_delta, max_decompressed_size=limit,
                         offsets=(-1 << 63, 1 << 63), only_queue=only_queue)  # fmt: skip
    expected = decode_pull(block, QUEUE, tags=tags, offset_delta=offset_delta, max_decompressed_size=limit, allow_partial=True,
                           only_queue=only_queue)  # fmt: skip
    assert rows_of(columns) == [row_of(message) for message in expected.messages if message.queue_offset < 1 << 63]
    assert contents(found.corrupt) == contents(expected.corrupt)
    assert (found.resume is None) == (expected.resume_at is None)


def test_golden_vectors_of_pulls() -> None:
    cases = [case for path in Suite("messages").files() for case in load(path) if case.type == "pull_process"]
    assert len(cases) > 5
    for case in cases:
        check_same(data(case.given["bytes"]), case.given["subscription"], case.given["offsetDelta"])


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_records_are_reported_alike_and_hide_no_other(name: str) -> None:
    bad, _ = DAMAGE[name]
    for block in (record(0) + record(1) + bad + record(3), bad + bad + record(1) + bad, record(0) + bad[:-3]):
        check_same(block)


@given(st.lists(stored_records().map(encode), max_size=5), st.sampled_from([None, 0, 7]))
@fuzz
def test_sound_records_of_every_kind(blocks: list[bytes], delta: int | None) -> None:
    check_same(b"".join(blocks), offset_delta=delta)


@given(damaged(st.lists(stored_records().map(encode), max_size=4).map(b"".join)))
@fuzz
def test_damaged_blocks(block: bytes) -> None:
    check_same(block, limit=10_000)


@given(damaged(st.integers(1, 5).map(lambda count: b"".join(map(record, range(count))))))
@fuzz
def test_damaged_pulls(block: bytes) -> None:
    check_same(block, limit=10_000)


def test_any_wrong_byte_of_pull() -> None:
    block = record(1) + record(2, bytes(600)) + record(3, b"")
    for at in range(len(block)):
        for mask in (0x01, 0x80):
            check_same(block[:at] + bytes((block[at] ^ mask,)) + block[at + 1 :])
        check_same(block[:at])


@pytest.mark.parametrize(
    "offsets", [(5, 6, 7), (5, 7, 8), (7, 6, 5), ((1 << 31) - 1, 1 << 31), (1 << 40, (1 << 40) + 1), (-2, -1, 0)]
)
def test_offsets_of_pull(offsets: tuple[int, ...]) -> None:
    block = b"".join(map(record, offsets))
    check_same(block)
    for first, last in ((offsets[0], offsets[-1]), (offsets[1], offsets[1] + 1)):
        columns = StoredColumns()
        read_columns(block, columns, QUEUE, offsets=(first, last), only_queue=True)
        assert offsets_of(columns) == [offset for offset in offsets if first <= offset < last]


def test_tags_are_compared_as_texts_also_inside_batches() -> None:
    plain = b"".join(record(offset, properties={"TAGS": tag}) for offset, tag in enumerate("ABCA"))
    block = plain + inner_batch(4, 5) + record(9, properties={"UNIQ_KEY": "x"})
    for tags in ("*", "A", "A || C", "D"):
        check_same(block, tags)
    with pytest.raises(LocalProtocolError):
        read_columns(block, StoredColumns(), QUEUE, tags="||")


def test_only_the_offsets_that_are_wanted_also_of_a_batch_and_of_damage() -> None:
    block = record(2) + inner_batch(3, 5) + record(8) + DAMAGE["CRC wrong"][0] + record(9)
    columns = StoredColumns()
    found = read_columns(block, columns, QUEUE, offsets=(4, 9))
    assert offsets_of(columns) == [4, 5, 6, 7, 8]
    assert found == ((), None)
    assert read_columns(block, StoredColumns(), QUEUE, offsets=(2, 3)).corrupt


def test_only_the_columns_that_are_wanted() -> None:
    block = record(0) + record(1, compress(b"long" * 99, CompressionType.ZLIB), sys_flag=COMPRESSED) + record(2)
    columns = StoredColumns(topics=False, bodies=False, properties=False)
    assert read_columns(block, columns, QUEUE) == ((), None)
    assert (len(columns), columns.size) == (3, len(columns.heads.join()))
    assert (columns.topics, columns.bodies.join(), columns.properties.join()) == ([], b"", b"")


@pytest.mark.parametrize("kind", list(CompressionType))
def test_what_does_not_fit_is_read_by_further_calls(kind: CompressionType) -> None:
    body = bytes(3000)
    bomb = compress(body, kind)
    block = b"".join(
        record(offset, bomb if offset % 3 else b"plain", sys_flag=COMPRESSED | kind if offset % 3 else 0)
        for offset in range(50)
    )
    offsets: list[int] = []
    position: int | None = 0
    calls = 0
    while position is not None:
        columns = StoredColumns()
        found = read_columns(block, columns, QUEUE, max_decompressed_size=10_000, position=position)
        assert not found.corrupt
        assert len(columns.bodies) <= 10_000 + 5 * len(columns)
        assert found.resume is None or found.resume > position
        offsets += offsets_of(columns)
        position = found.resume
        calls += 1
    assert offsets == list(range(50))
    assert calls > 5


def test_other_buffers_are_read() -> None:
    columns = StoredColumns()
    read_columns(bytearray(BAD), columns, QUEUE)
    assert len(columns) == 1
