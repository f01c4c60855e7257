"""Turns Arrow rows into the content of messages: bodies, properties in wire format, and targets. It refuses rows that cannot
become messages.

A row costs about a microsecond here, so no Message and no dictionary is created per row. Each column that becomes properties is
converted to a list of strings, one per row: the column's part of the row's properties in wire format. The parts are joined. They
are a row's properties except for the unique id and ``WAIT``, which are added when the row is encoded (``sink_request``). Most
checks run over whole columns. Only if a check fails, the module searches for the row, to name it in the error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa

from rmq_protocol.constants import MAX_BODY_SIZE, MAX_PROPERTIES_SIZE, RETRY_TOPIC_PREFIX, PropertyName
from rmq_protocol.message import MAX_DELAY_LEVEL, Message, MessageQueue
from rmq_protocol.properties import AFTER_ID, BEFORE_ID, RESERVED_NAMES
from rmq_protocol.validation import check_message

from ..errors import InvalidMessageError
from ..producer import select_by_hash
from .options import WriteOptions

ID_PROPERTY: Final = "RMQ_SPARK_ID"
"""Property that every copy of a row has. Its value is <query or job>:<micro-batch>:<partition>:<row> or the value of
``idColumn``.
"""

_STANDS_FOR: Final = {"TAGS": "tags", "KEYS": "keys", "__SHARDINGKEY": "shardingKey"}
"""Properties that replace a column if the column is missing, and in rows in which it is NULL."""
DROPPED_PROPERTIES: Final = RESERVED_NAMES | {
    ID_PROPERTY,
    PropertyName.SHARDING_KEY.value,
    PropertyName.INNER_NUM.value,
    PropertyName.INNER_BASE.value,
    PropertyName.TRANSACTION_ID.value,
    PropertyName.TRANSACTION_CHECK_TIMES.value,
    PropertyName.CHECK_IMMUNITY_TIME_IN_SECONDS.value,
    PropertyName.PROPERTY_FORWARD_QUEUE_ID.value,
    PropertyName.REDIRECT.value,
    PropertyName.START_DELIVER_TIME.value,
}
"""Properties that are not copied from a column ``properties``, because clients and brokers set them or because they replace a
column.
"""

_UNIQUE_ROOM: Final = len(BEFORE_ID + AFTER_ID) + 56
"""Maximum size in bytes of the properties that are added to every message when it is encoded. An id has 32 or 56 digits."""
RECORD_ROOM: Final = 22 + _UNIQUE_ROOM
"""Maximum number of bytes that a row takes in a batch in addition to its body and ``Block.texts``."""
_INT32: Final = range(-(1 << 31), 1 << 31)


class Part(NamedTuple):
    """The rows of one block that have the same target, in their order.

    Attributes:
        queue: The queue of the rows. None stands for any queue.
        rows: The positions of the rows in the block.
        singly: Whether each row must be sent alone.
    """

    topic: str
    queue: MessageQueue | None
    rows: Sequence[int]
    singly: bool


class Targets(NamedTuple):
    """The targets of the rows of one block.

    Each row has a topic (or one string holds the topic of all rows), a queue (broker and number) and a sharding key. A field is
    None if no row has such a value.

    Attributes:
        alone: The rows that are not sent in a batch.
    """

    topics: str | list[str]
    queues: list[tuple[str, int] | None] | None
    keys: Sequence[str | None] | None
    alone: set[int] | None

    def keyed_topics(self) -> set[str]:
        """Return the topics of rows with a sharding key."""
        if self.keys is None:
            return set()
        if isinstance(self.topics, str):
            return {self.topics} if any(self.keys) else set()
        return {topic for topic, key in zip(self.topics, self.keys, strict=True) if key}

    def parts(self, count: int, queues_of: Mapping[str, Sequence[MessageQueue]]) -> list[Part]:
        """Group the ``count`` rows by their targets.

        Args:
            queues_of: The queues of each topic of ``keyed_topics``.
        """
        topics = self.topics
        if isinstance(topics, str) and self.queues is None and self.keys is None and self.alone is None:
            return [Part(topics, None, range(count), topics.startswith(RETRY_TOPIC_PREFIX))]
        alone = self._rows_alone(count)
        anywhere: dict[tuple[str, bool], list[int]] = {}
        ordered: dict[MessageQueue, list[tuple[bool, list[int]]]] = {}
        for row, queue in enumerate(self._row_queues(count, queues_of)):
            singly = row in alone
            if queue is None:
                anywhere.setdefault((topics if isinstance(topics, str) else topics[row], singly), []).append(row)
                continue
            runs = ordered.setdefault(queue, [])
            if not runs or runs[-1][0] is not singly:
                runs.append((singly, []))
            runs[-1][1].append(row)
        in_order = [Part(queue.topic, queue, rows, singly) for queue, runs in ordered.items() for singly, rows in runs]
        return in_order + [Part(topic, None, rows, singly) for (topic, singly), rows in anywhere.items()]

    def _rows_alone(self, count: int) -> Collection[int]:
        """Return the rows that are sent alone, including rows for retry topics, because brokers accept no batches for these
        topics.
        """
        if isinstance(self.topics, str):
            return range(count) if self.topics.startswith(RETRY_TOPIC_PREFIX) else self.alone or ()
        to_retry = {row for row, topic in enumerate(self.topics) if topic.startswith(RETRY_TOPIC_PREFIX)}
        return to_retry | self.alone if self.alone else to_retry

    def _row_queues(self, count: int, queues_of: Mapping[str, Sequence[MessageQueue]]) -> list[MessageQueue | None]:
        """Return the queue of each row: the queue that the row names or, without one, the queue that its sharding key
        determines. The queue is None for a row that has neither.
        """
        topics, queues, keys = self.topics, self.queues, self.keys
        if queues is None and keys is None:
            return [None] * count
        found: list[MessageQueue | None] = []
        hashed: dict[tuple[str, str], MessageQueue] = {}
        for row in range(count):
            topic = topics if isinstance(topics, str) else topics[row]
            named = queues[row] if queues is not None else None
            queue: MessageQueue | None = None
            if named is not None:
                queue = MessageQueue(topic, *named)
            elif keys is not None and (key := keys[row]):
                queue = hashed.get((topic, key))
                if queue is None:
                    queue = hashed[topic, key] = select_by_hash(queues_of[topic], _NO_MESSAGE, key)
            found.append(queue)
        return found


@dataclass(eq=False, slots=True)
class Block:
    """The rows of one Arrow batch.

    ``bodies``, ``texts`` (properties without the unique id) and ``flags`` have one entry per row. ``flags`` is None if all
    flags are 0.

    Attributes:
        first: The number of the block's first row in the partition.
        sizes: Maximum number of bytes that each row takes in a batch.
    """

    first: int
    partition: int
    bodies: list[bytes]
    texts: list[str]
    flags: list[int] | None
    targets: Targets
    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        texts = self.texts
        widths: Iterable[int] = map(len, texts) if "".join(texts).isascii() else [len(text.encode()) for text in texts]
        self.sizes = [RECORD_ROOM + len(body) + width for body, width in zip(self.bodies, widths, strict=True)]

    def __len__(self) -> int:
        return len(self.bodies)

    def parts(self, queues_of: Mapping[str, Sequence[MessageQueue]]) -> list[Part]:
        """Return all rows, grouped by their targets.

        Args:
            queues_of: The queues to choose from, of each topic of ``targets.keyed_topics``.
        """
        return self.targets.parts(len(self), queues_of)


_NO_MESSAGE: Final = Message("t", b"b")
"""The message that is passed to the selector, which reads only the key."""


def blocks_of(batches: Iterator[pa.RecordBatch], options: WriteOptions, job: str, partition: int) -> Iterator[Block]:
    """Yield the rows of Arrow batches as blocks.

    Raise InvalidMessageError, which names the row, for a row that cannot become a message.

    Args:
        job: The prefix of the ids of rows.
    """
    number = 0
    for batch in batches:
        first = number
        number += batch.num_rows
        if batch.num_rows:
            block = _Reading(batch, first, partition, options).block(job)
            del batch  # deleted before the next batch is read, because both may be large
            yield block
            del block


class _Reading:
    """Reads one Arrow batch."""

    def __init__(self, batch: pa.RecordBatch, first: int, partition: int, options: WriteOptions) -> None:
        self._columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        self._count = batch.num_rows
        self._first = first
        self._partition = partition
        self._options = options
        self._fragments: list[list[str]] = []

    def block(self, job: str) -> Block:
        bodies = self._bodies()
        topics = self._topics()
        instead = self._properties()
        self._add("TAGS", self._texts("tags", instead))
        self._add("KEYS", self._keys(instead))
        keys = self._texts("shardingKey", instead)
        self._add("__SHARDINGKEY", keys)
        alone = self._delays()
        self._identities(job)
        fragments = self._fragments
        texts = fragments[0] if len(fragments) == 1 else list(map("".join, zip(*fragments, strict=True)))
        flags = self._flags()
        targets = Targets(topics, self._queues(), keys if keys is not None and any(keys) else None, alone)
        block = Block(self._first, self._partition, bodies, texts, flags, targets)
        self._check_sizes(block)
        return block

    # -- columns

    def _bodies(self) -> list[bytes]:
        column = self._columns["body"]
        if column.null_count:
            self._refuse(self._null(column), "has no body: column body is NULL; give a value, or leave the row out")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
        bodies: list[bytes] = column.to_pylist()
        if not all(bodies):
            self._refuse(_first(bodies, lambda body: not body), "has an empty body; give at least one byte")
        return bodies

    def _topics(self) -> str | list[str]:
        if self._options.topic is not None:
            return self._options.topic
        column = self._columns["topic"]
        topics: list[str | None] = column.to_pylist()
        for topic in set(topics):
            if not topic:
                self._refuse(
                    _first(topics, lambda topic: not topic), "has no topic: column topic is NULL or empty; give a name"
                )
            try:
                check_message(topic, b"-")
            except InvalidMessageError as error:
                self._refuse(topics.index(topic), f"cannot be sent: {error}")
        return [topic for topic in topics if topic]

    def _texts(self, name: str, instead: Mapping[str, list[str | None]]) -> Sequence[str | None] | None:
        """Return a string or None for each row: the value of the column or, if it is missing or NULL, the value of the property
        that replaces it. Return None if there is neither the column nor the property.
        """
        column = self._columns.get(name)
        other = instead.get(name)
        if column is None:
            return other
        values: list[str | None] = column.to_pylist()
        self._check_text(values, f"column {name}")
        if other is not None:
            values = [theirs if value is None else value for value, theirs in zip(values, other, strict=True)]
        return values

    def _keys(self, instead: Mapping[str, list[str | None]]) -> Sequence[str | None] | None:
        column = self._columns.get("keys")
        if column is None:
            return instead.get("keys")
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = self._texts("keys", instead)
            return None if texts is None else [_normal(text) if text is not None and " " in text else text for text in texts]
        lists: list[list[str | None] | None] = column.to_pylist()
        joined = [None if keys is None else " ".join([key for key in keys if key]) for keys in lists]
        self._check_text(joined, "column keys")
        other = instead.get("keys")
        if other is None:
            return joined
        return [theirs if keys is None else keys for keys, theirs in zip(joined, other, strict=True)]

    def _add(self, name: str, values: Sequence[str | None] | None) -> None:
        if values is not None:
            self._fragments.append([f"{name}\x01{value}\x02" if value else "" for value in values])

    def _properties(self) -> Mapping[str, list[str | None]]:
        """Add the users' entries to the properties. Return the entries that replace a column, by the column's name."""
        column = self._columns.get("properties")
        if column is None:
            return {}
        names: list[str] = column.keys.to_pylist()
        values: list[str | None] = column.items.to_pylist()
        present = column.is_valid().to_pylist() if column.null_count else None
        standing = _STANDS_FOR.keys() & set(names)
        instead: dict[str, list[str | None]] = {_STANDS_FOR[name]: [None] * self._count for name in standing}
        texts: list[str] = []
        for row, (start, end) in enumerate(pairwise(column.offsets.to_pylist())):
            text = ""
            if present is None or present[row]:
                for name, value in zip(names[start:end], values[start:end], strict=True):
                    if name not in DROPPED_PROPERTIES:
                        if value is not None:
                            text += f"{name}\x01{value}\x02"
                            if not name or not value:
                                self._refuse(row, f"has property {name[:80]!r} = {value[:80]!r}: neither may be empty")
                    elif name in standing:
                        instead[_STANDS_FOR[name]][row] = value
            texts.append(text)
        self._check_text(names, "a property's name", column)
        self._check_text(values, "the value of a property", column)
        self._fragments.append(texts)
        return instead

    def _delays(self) -> set[int] | None:
        """Return the rows with a delayed delivery, each of which is sent alone. Return None if there are no such rows."""
        levels, column = self._numbers("delayLevel", range(MAX_DELAY_LEVEL + 1)), self._columns.get("deliverTimestamp")
        texts = [f"DELAY\x01{level}\x02" if level else "" for level in levels] if levels is not None else [""] * self._count
        if column is not None:
            moments: list[int | None] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
            for row, moment in enumerate(moments):
                if moment is not None:
                    if texts[row]:
                        self._refuse(row, "has both a delayLevel and a deliverTimestamp; one of them must be NULL")
                    if moment < 0:
                        self._refuse(row, f"has a deliverTimestamp before 1970: {moment} ms; give a later one")
                    texts[row] = f"TIMER_DELIVER_MS\x01{moment}\x02"
        if not any(texts):
            return None
        self._fragments.append(texts)
        return {row for row, text in enumerate(texts) if text}

    def _identities(self, job: str) -> None:
        name = self._options.id_column
        if name is None:
            head = f"{ID_PROPERTY}\x01{job}:{self._partition}:"
            first = self._first
            self._fragments.append([f"{head}{number}\x02" for number in range(first, first + self._count)])
            return
        values: list[str | None] = self._columns[name].to_pylist()
        if not all(values):
            self._refuse(_first(values, lambda value: not value), f"has no id: column {name} is NULL or empty; give a string")
        self._check_text(values, f"column {name}")
        self._add(ID_PROPERTY, values)

    def _flags(self) -> list[int] | None:
        flags = self._numbers("flag", _INT32)
        return [flag or 0 for flag in flags] if flags is not None and any(flags) else None

    def _queues(self) -> list[tuple[str, int] | None] | None:
        """Return the broker and the queue of each row (None for a row without a queue). Return None if no row has a queue."""
        column = self._columns.get("brokerName")
        if column is None:
            return None
        numbers = self._numbers("queueId", range(1 << 31))
        assert numbers is not None
        found: list[tuple[str, int] | None] = []
        for row, (broker, number) in enumerate(zip(column.to_pylist(), numbers, strict=True)):
            if (broker is None) != (number is None) or broker == "":
                self._refuse(
                    row, f"names no queue: brokerName is {broker!r} and queueId is {number}; give both or none of them"
                )
            found.append(None if broker is None or number is None else (broker, number))
        return found if any(found) else None

    # -- checks

    def _numbers(self, name: str, allowed: range) -> list[int | None] | None:
        column = self._columns.get(name)
        if column is None or column.null_count == self._count:
            return None if name != "queueId" else [None] * self._count
        values: list[int | None] = column.to_pylist()
        for value in set(values):
            if value is not None and value not in allowed:
                self._refuse(values.index(value), f"has {name} {value}: it must be from {allowed[0]} to {allowed[-1]}")
        return values

    def _check_text(self, values: Sequence[str | None], what: str, column: Any = None) -> None:
        """Raise InvalidMessageError for values that contain one of the control characters 0, 1 and 2.

        Args:
            column: The column of maps from which the values come, or None.
        """
        joined = "".join([value for value in values if value])
        if "\x01" not in joined and "\x02" not in joined and "\x00" not in joined:
            return
        place = _first(values, lambda value: value is not None and not {"\x00", "\x01", "\x02"}.isdisjoint(value))
        row = place
        if column is not None:
            row = next(row for row, end in enumerate(column.offsets.to_pylist()[1:]) if place < end)
        self._refuse(
            row,
            f"holds a control character 0, 1 or 2 in {what}, {(values[place] or '')[:80]!r}; remove it: no property may hold one",
        )

    def _check_sizes(self, block: Block) -> None:
        if max(block.sizes) <= MAX_PROPERTIES_SIZE:
            return
        for row, size in enumerate(block.sizes):
            if size > MAX_PROPERTIES_SIZE:
                body = len(block.bodies[row])
                if body > MAX_BODY_SIZE:
                    self._refuse(row, f"has a body of {body} bytes, the limit is {MAX_BODY_SIZE}; shorten it")
                properties = size - body - RECORD_ROOM + _UNIQUE_ROOM
                if properties > MAX_PROPERTIES_SIZE:
                    self._refuse(
                        row,
                        f"has properties of {properties} bytes, keys, tags and {_UNIQUE_ROOM} bytes for its unique id included; "
                        f"the limit is {MAX_PROPERTIES_SIZE}; shorten them",
                    )

    def _null(self, column: Any) -> int:
        return int(column.is_valid().to_pylist().index(False))

    def _refuse(self, row: int, why: str) -> NoReturn:
        """Raise InvalidMessageError, which names the row by its number and, if it has one, by its key."""
        column = self._columns.get("keys")
        keys = column[row].as_py() if column is not None else None
        named = f", keys {str(keys)[:80]!r}," if keys else ""
        raise InvalidMessageError(f"row {self._first + row} of partition {self._partition}{named} {why}")


def _first(values: Sequence[Any], wrong: Callable[[Any], bool]) -> int:
    return next(place for place, value in enumerate(values) if wrong(value))


def _normal(keys: str) -> str:
    return " ".join([key for key in keys.split(" ") if key])
