"""Messages as columns of Arrow, and columns as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from rmq_protocol.message import MessageExt

from .schema import SOURCE_COLUMNS

__all__ = ["ROWS", "arrow_schema", "record_batches"]

ROWS: Final = 4096
"""Rows of a record batch that is read."""
BYTES: Final = 16 * 1024 * 1024
"""Bytes of bodies from which on a record batch has fewer."""

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_TYPES: Final[dict[str, Any]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": _TIMESTAMP,
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(columns: Iterable[str]) -> pa.Schema:
    """Exactly what Spark expects of these columns; it compares for equality."""
    return pa.schema([pa.field(name, _TYPES[SOURCE_COLUMNS[name]]) for name in columns])


def record_batches(batches: Iterable[list[MessageExt]], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Of at most ``ROWS`` rows and some ``BYTES`` bytes each."""
    schema = arrow_schema(columns)
    makers = [_MAKERS[name] for name in columns]
    rows: list[MessageExt] = []
    size = 0
    for messages in batches:
        for message in messages:
            rows.append(message)
            size += len(message.body)
            if len(rows) >= ROWS or size >= BYTES:
                yield _batch(rows, makers, schema)
                rows, size = [], 0
    if rows:
        yield _batch(rows, makers, schema)


def _batch(rows: list[MessageExt], makers: list[Callable[[list[MessageExt]], Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([make(rows) for make in makers], schema=schema)


def _texts(values: list[str | None]) -> Any:
    return pa.array(values, pa.string())


def _moments(values: list[int]) -> Any:
    return pa.array([value * 1000 for value in values], pa.int64()).cast(_TIMESTAMP)


def _properties(rows: list[MessageExt]) -> Any:
    offsets = [0]
    names: list[str] = []
    values: list[str] = []
    for row in rows:
        names += row.properties.keys()
        values += row.properties.values()
        offsets.append(len(names))
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(names, pa.string()), pa.array(values, pa.string()))


_MAKERS: Final[dict[str, Callable[[list[MessageExt]], Any]]] = {
    "topic": lambda rows: _texts([row.topic for row in rows]),
    "brokerName": lambda rows: _texts([row.queue.broker_name for row in rows]),
    "queueId": lambda rows: pa.array([row.queue.queue_id for row in rows], pa.int32()),
    "offset": lambda rows: pa.array([row.queue_offset for row in rows], pa.int64()),
    "msgId": lambda rows: _texts([row.msg_id for row in rows]),
    "offsetMsgId": lambda rows: _texts([row.offset_msg_id for row in rows]),
    "tags": lambda rows: _texts([row.tags for row in rows]),
    "keys": lambda rows: _texts([row.properties.get("KEYS") for row in rows]),
    "body": lambda rows: pa.array([row.body for row in rows], pa.binary()),
    "properties": _properties,
    "bornTimestamp": lambda rows: _moments([row.born_time_ms for row in rows]),
    "storeTimestamp": lambda rows: _moments([row.store_time_ms for row in rows]),
    "bornHost": lambda rows: _texts([row.born_host for row in rows]),
    "storeHost": lambda rows: _texts([row.store_host for row in rows]),
    "reconsumeTimes": lambda rows: pa.array([row.reconsume_times for row in rows], pa.int32()),
    "flag": lambda rows: pa.array([row.flag for row in rows], pa.int32()),
    "sysFlag": lambda rows: pa.array([row.sys_flag for row in rows], pa.int32()),
}
