"""Rows of Arrow as messages: which value of which column becomes what, and what cannot be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rmq_protocol.message import Message, MessageQueue

from ..errors import InvalidMessageError
from .options import WriteOptions

__all__ = ["ID_PROPERTY", "Row", "messages_of"]

ID_PROPERTY: Final = "RMQ_SPARK_ID"
"""The same on every copy of a row: <query or job>:<micro-batch>:<partition>:<row>, or the text of ``idColumn``."""


class Row(NamedTuple):
    """``queue``: where it must go; ``key``: the sharding key, that chooses the queue."""

    message: Message
    queue: MessageQueue | None
    key: str | None


def messages_of(batches: Iterator[pa.RecordBatch], options: WriteOptions, prefix: str) -> Iterator[list[Row]]:
    """``prefix``: of the ids. Raises InvalidMessageError that names the row and the column."""
    number = 0
    for batch in batches:
        names = batch.schema.names
        columns = {name: _values(name, batch.column(place)) for place, name in enumerate(names)}
        make = _maker(columns, options, prefix)
        yield [make(number + place, place) for place in range(batch.num_rows)]
        number += batch.num_rows


def _values(name: str, column: Any) -> list[Any]:
    if name == "properties":
        return [None if items is None else dict(items) for items in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _maker(columns: dict[str, list[Any]], options: WriteOptions, prefix: str) -> Callable[[int, int], Row]:
    bodies = columns["body"]

    def make(number: int, place: int) -> Row:
        def value(name: str) -> Any:
            column = columns.get(name)
            return None if column is None else column[place]

        body = bodies[place]
        if body is None:
            raise InvalidMessageError(f"row {number} of this partition has no body: column body is NULL")
        topic = options.topic if options.topic is not None else value("topic")
        if not topic:
            raise InvalidMessageError(f"row {number} of this partition has no topic: column topic is NULL or empty")
        identity = f"{prefix}:{number}" if options.id_column is None else value(options.id_column)
        if not identity:
            raise InvalidMessageError(f"row {number} of this partition has no id: column {options.id_column} is NULL or empty")
        keys = value("keys")
        level, moment = value("delayLevel"), value("deliverTimestamp")
        message = Message(
            topic,
            body.encode() if isinstance(body, str) else body,
            tags=value("tags"),
            keys=keys.split() if isinstance(keys, str) else keys or (),
            flag=value("flag") or 0,
            properties={**(value("properties") or {}), ID_PROPERTY: identity},
            delay_level=level or 0,
            deliver_at=None if moment is None else _epoch(moment),
            sharding_key=value("shardingKey"),
        )
        queue = None
        if value("queueId") is not None and value("brokerName"):
            queue = MessageQueue(topic, value("brokerName"), value("queueId"))
        return Row(message, queue, value("shardingKey") if queue is None else None)

    return make


def _epoch(moment: datetime) -> float:
    return moment.timestamp()
