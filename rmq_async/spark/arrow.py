"""Builds the Arrow columns of a read.

They are built from the fields of stored records (``rmq_protocol.columns``). Only the requested columns are built, each for all rows
of a batch at once. Arrow splits the encoded properties. If it cannot split those of one row (``_split``), the properties of all
rows of the batch are decoded one by one.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
)
from rmq_protocol.ids import format_host, pack_offset_id
from rmq_protocol.message import MessageQueue
from rmq_protocol.properties import decode_properties

from .schema import SOURCE_COLUMNS

ROWS: Final = 10_000
"""Maximum number of rows of a record batch. Spark's own batches have the same maximum."""
BYTES: Final = 16 * 1024 * 1024
"""Number of bytes of rows at which a record batch is full, even with fewer than ``ROWS`` rows; see ``PROPERTIES_WEIGHT``."""
PROPERTIES_WEIGHT: Final = 4
"""Weight of a byte of properties in ``BYTES``. The properties are copied about that many times while maps are made
from them.
"""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())
_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": _TIMESTAMP,
    "map<string,string>": _MAP,
}
_NO_SEPARATORS: Final = bytes(range(256)).translate(None, b"\x01\x02")
_OF_PROPERTIES: Final = frozenset({"msgId", "tags", "keys", "properties"})


class Rows:
    """Rows that are collected for a record batch. Records are added to ``stored``, and ``came`` then records their queue.

    Args:
        shown: Returns the name of a topic without its namespace.

    Attributes:
        runs: The queues, each with the exclusive end of its rows.
    """

    def __init__(self, columns: Iterable[str], shown: Callable[[str], str] = str) -> None:
        self.shown = shown
        wanted = set(columns)
        self.stored = StoredColumns(
            topics="topic" in wanted, bodies="body" in wanted, properties=not wanted.isdisjoint(_OF_PROPERTIES)
        )
        self.runs: list[tuple[MessageQueue, int]] = []
        self._properties: Any = None

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def full(self) -> bool:
        stored = self.stored
        return len(stored) >= ROWS or stored.size + (PROPERTIES_WEIGHT - 1) * len(stored.properties) >= BYTES

    def came(self, queue: MessageQueue) -> None:
        """Record that the rows added to ``stored`` since the last call belong to ``queue``."""
        if self.runs and self.runs[-1][0] == queue:
            self.runs[-1] = (queue, len(self.stored))
        else:
            self.runs.append((queue, len(self.stored)))

    # -- the data of columns

    def by_queue(self, value: Callable[[MessageQueue], Any], kind: Any) -> Any:
        parts = []
        start = 0
        for queue, end in self.runs:
            parts.append(pa.repeat(pa.scalar(value(queue), kind), end - start))
            start = end
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def properties(self) -> Any:
        """Return the properties as a column of maps, which is built once."""
        if self._properties is None:
            self._properties = _maps(self.stored.properties.join(), self.stored.property_sizes)
        return self._properties

    def property(self, name: str) -> Any:
        return pc.map_lookup(self.properties(), name, "last")


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """Return the schema of these columns, equal to the schema that Spark expects."""
    return pa.schema([pa.field(name, _TYPES[SOURCE_COLUMNS[name]]) for name in columns])


def record_batches(filled: Iterable[Rows], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows as record batches of at most ``ROWS`` rows."""
    schema = arrow_schema(columns)
    makers = [_MAKERS[name] for name in columns]
    for rows in filled:
        batch = pa.RecordBatch.from_arrays([make(rows) for make in makers], schema=schema)
        for start in range(0, len(rows), ROWS):
            yield batch.slice(start, ROWS)


# -- columns


def _numbers(numbers: array[int], kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _integers(place: int) -> Callable[[Rows], Any]:
    return lambda rows: _numbers(rows.stored.int32(place), pa.int32())


def _moments(place: int) -> Callable[[Rows], Any]:
    """Return a function that builds a column of timestamps, with NULL for a time that does not fit into microseconds."""

    def make(rows: Rows) -> Any:
        millis = _numbers(rows.stored.int64(place), pa.int64())
        try:
            return pc.multiply_checked(millis, 1000).cast(_TIMESTAMP)
        except pa.ArrowInvalid:
            moments = [value * 1000 for value in millis.to_pylist()]
            known = [moment if -(1 << 63) <= moment < 1 << 63 else None for moment in moments]
            return pa.array(known, pa.int64()).cast(_TIMESTAMP)

    return make


def _cut(kind: Any, joined: bytes, sizes: Sequence[int]) -> Any:
    ends = array("i", accumulate(sizes, initial=0))
    return pa.Array.from_buffers(kind, len(sizes), [None, pa.py_buffer(ends), pa.py_buffer(joined)])


def _texts(values: list[str]) -> Any:
    """Return a column of strings. If all strings are equal, Arrow repeats one of them."""
    if values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], pa.string()), len(values))
    return pa.array(values, pa.string())


def _topics(rows: Rows) -> Any:
    shown = {name: rows.shown(name) for name in rows.stored.topic_names.values()}
    return _texts([shown[name] for name in rows.stored.topics])


def _hosts(place: int) -> Callable[[Rows], Any]:
    which = (BORN_HOST, STORE_HOST).index(place)

    def make(rows: Rows) -> Any:
        stored = rows.stored
        raw = stored.raw64(place)
        if raw == raw[:8] * len(rows) and not stored.other_hosts:
            return pa.repeat(pa.scalar(_host(raw[:4], raw[4:8]), pa.string()), len(rows))
        if not stored.other_hosts:
            places = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(raw)]).dictionary_encode()
            distinct = (place.to_bytes(8, sys.byteorder, signed=True) for place in places.dictionary.to_pylist())
            return pa.array([_host(place[:4], place[4:]) for place in distinct], pa.string()).take(places.indices)
        hosts = [_host(raw[at : at + 4], raw[at + 4 : at + 8]) for at in range(0, len(raw), 8)]
        for row, addresses in stored.other_hosts.items():
            hosts[row] = _host(addresses[which], raw[row * 8 + 4 : row * 8 + 8])
        return pa.array(hosts, pa.string())

    return make


def _host(address: bytes, port: bytes) -> str:
    return format_host(address, int.from_bytes(port, "big"))


def _offset_ids(rows: Rows) -> Any:
    """Return the offset ids, which consist of the store host and the commit log offset. They have 32 digits, or more
    with IPv6.
    """
    stored = rows.stored
    parts = array("q", bytes(16 * len(rows)))
    parts[0::2] = array("q", stored.raw64(STORE_HOST))
    parts[1::2] = array("q", stored.raw64(COMMIT_LOG_OFFSET))
    digits = parts.tobytes().hex().upper()
    if stored.other_hosts:
        ids = [digits[at : at + 32] for at in range(0, len(digits), 32)]
        offsets = stored.int64(COMMIT_LOG_OFFSET)
        for row, (_, address) in stored.other_hosts.items():
            ids[row] = pack_offset_id(_host(address, bytes.fromhex(ids[row][8:16])), offsets[row])
        return pa.array(ids, pa.string())
    ends = array("i", range(0, len(digits) + 1, 32))
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(digits.encode())])


def _ids(rows: Rows) -> Any:
    unique = rows.property("UNIQ_KEY")
    return unique if not unique.null_count else pc.coalesce(unique, _offset_ids(rows))


def _maps(joined: bytes, sizes: Sequence[int]) -> Any:
    raw = _cut(pa.binary(), joined, sizes)
    return _split(raw, joined) or _maps_one_by_one(raw.to_pylist())


def _split(raw: Any, joined: bytes) -> Any:
    """Return a column of maps for the encoded properties. Return None if one of the strings needs ``decode_properties``.

    The decoder is needed for a string that is empty or is not UTF-8, that has an empty name, an empty value or the same name
    twice, or that does not consist of a name, byte 1, a value and byte 2 for each property (the last byte 2 may be missing).

    Args:
        joined: All strings, joined.
    """
    # Names and values are split at one separator, because a second split costs half as much again.
    ended = pc.sum(pc.ends_with(raw, b"\x02")).as_py()
    if ended == len(raw):
        raw = pc.binary_slice(raw, 0, -1)
    else:
        texts = [text.removesuffix(b"\x02") for text in raw.to_pylist()]
        raw = pa.array(texts, pa.binary())
        joined = b"\x02".join((*texts, b""))
    separators = joined.translate(None, _NO_SEPARATORS)
    if separators != b"\x01\x02" * (len(separators) // 2):
        return None
    _, ends, data = raw.buffers()
    one_kind = pa.py_buffer(data.to_pybytes().replace(b"\x02", b"\x01"))
    cut = pa.Array.from_buffers(pa.string(), len(raw), [None, ends, one_kind])
    try:
        cut.validate(full=True)
    except pa.ArrowInvalid:
        return None
    parts = pc.split_pattern(cut, "\x01")
    if pc.any(pc.equal(parts.values, "")).as_py():
        return None
    places = _even(len(parts.values))
    names, values = parts.values.take(places), parts.values[1:].take(places)
    offsets = pc.shift_right(parts.offsets, 1)
    shapes = pc.unique(pc.binary_join(pa.ListArray.from_arrays(offsets, names), "\x01")).to_pylist()
    for shape in shapes:
        in_order = shape.split("\x01")
        if len(set(in_order)) != len(in_order):
            return None
    return pa.MapArray.from_arrays(offsets, names, values)


def _even(count: int) -> Any:
    """Return the positions of the names: 0, 2, 4 and so on, below ``count``."""
    return pa.Array.from_buffers(pa.int32(), count // 2, [None, pa.py_buffer(array("i", range(0, count, 2)))])


def _maps_one_by_one(texts: Sequence[bytes]) -> Any:
    offsets = [0]
    names: list[str] = []
    values: list[str] = []
    for text in texts:
        properties = decode_properties(text)
        names += properties.keys()
        values += properties.values()
        offsets.append(len(names))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string()))


_MAKERS: Final[dict[str, Callable[[Rows], Any]]] = {
    "topic": _topics,
    "brokerName": lambda rows: rows.by_queue(lambda queue: queue.broker_name, pa.string()),
    "queueId": lambda rows: rows.by_queue(lambda queue: queue.queue_id, pa.int32()),
    "offset": lambda rows: _numbers(rows.stored.int64(QUEUE_OFFSET), pa.int64()),
    "msgId": _ids,
    "offsetMsgId": _offset_ids,
    "tags": lambda rows: rows.property("TAGS"),
    "keys": lambda rows: rows.property("KEYS"),
    "body": lambda rows: _cut(pa.binary(), rows.stored.bodies.join(), rows.stored.body_sizes),
    "properties": lambda rows: rows.properties(),
    "bornTimestamp": _moments(BORN_TIME),
    "storeTimestamp": _moments(STORE_TIME),
    "bornHost": _hosts(BORN_HOST),
    "storeHost": _hosts(STORE_HOST),
    "reconsumeTimes": _integers(RECONSUME_TIMES),
    "flag": _integers(FLAG),
    "sysFlag": _integers(SYS_FLAG),
}
