"""Batch writes and streaming writes. A task is over when every one of its rows is answered; a row counts when the broker says so.

Rows without a queue or a sharding key may go anywhere, so they travel in batches, each to the queue that the producer chooses; rows
for a queue (``brokerName`` and ``queueId``, or a sharding key) keep their order: one batch of a queue is under way at a time.
Rows that no batch may hold (delays) go one by one. Nothing on RocketMQ can be taken back: a task that fails has sent what it has
sent, its next attempt sends it again with the same ``RMQ_SPARK_ID``, and ``abort`` only says so.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ..errors import ConfigError
from .options import WriteOptions
from .plain import plainly
from .rows import blocks_of
from .schema import SINK_COLUMNS
from .sending import Sending
from .worker import worker

__all__ = ["BatchWriter", "Sent", "StreamWriter", "sink_columns"]

logger = logging.getLogger(__name__)


@dataclass
class Sent(WriterCommitMessage):
    """What one task stored. ``retried``: messages that took more than one attempt."""

    partition: int
    rows: int
    bytes: int
    retried: int


def sink_columns(schema: StructType, options: WriteOptions) -> tuple[str, ...]:
    """The names of the columns that are written. Raises ConfigError for one that is missing, unknown or of another type."""
    names = tuple(field.name for field in schema.fields)
    known = ", ".join(SINK_COLUMNS)
    for field in schema.fields:
        types = SINK_COLUMNS.get(field.name)
        if field.name == options.id_column:
            types = ("string",)
        if types is None:
            raise ConfigError(f"there is no column {field.name} to write, only {known}; .select() what is meant")
        if field.dataType.simpleString() not in types:
            raise ConfigError(f"column {field.name} must be {' or '.join(types)}, not {field.dataType.simpleString()}")
    if "body" not in names:
        raise ConfigError(
            f"column body is missing: what is written needs it, as binary or string; there are {', '.join(names)}"
        )
    if options.topic is None and "topic" not in names:
        raise ConfigError("nothing says which topic to write to: give the option topic or a column topic")
    if options.id_column is not None and options.id_column not in names:
        raise ConfigError(f"option idColumn: there is no column {options.id_column}, only {', '.join(names)}")
    if ("queueId" in names) != ("brokerName" in names):
        raise ConfigError("columns brokerName and queueId name a queue together; one of them is missing")
    return names


class _Writer:
    """What both do in a task."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        here = worker()
        producer = here.producer(self._options, fresh=attempt > 0)
        job = self._job(context)
        sending = Sending(here, producer, self._options)
        try:
            for block in blocks_of(iterator, self._options, job, partition):
                sending.send(block)
            sending.finish()
        finally:
            sending.close()
        return Sent(partition, sending.rows, sending.bytes, sending.retried)

    def _job(self, context: TaskContext) -> str:
        raise NotImplementedError

    def _tell(self, messages: Sequence[Any], what: str) -> None:
        sent = [message for message in messages if isinstance(message, Sent)]
        logger.info(
            "%s: %d messages, %d bytes by %d tasks, %d of them sent again",
            what, sum(one.rows for one in sent), sum(one.bytes for one in sent), len(sent), sum(one.retried for one in sent),
        )  # fmt: skip

    def _tell_abort(self, messages: Sequence[Any], what: str) -> None:
        done = [message for message in messages if isinstance(message, Sent)]
        logger.error(
            "%s failed: %d of %d tasks had sent all of their %d messages, which stay in the topic, as do those of the others that "
            "were acknowledged", what, len(done), len(messages), sum(one.rows for one in done),
        )  # fmt: skip


class BatchWriter(_Writer, DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._id = uuid.uuid4().hex
        """Of the job; every task and every attempt of one gets the same, pickled with the writer."""

    def _job(self, context: TaskContext) -> str:
        return f"{self._id}:0"

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tell(messages, "write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._tell_abort(messages, "write")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def _job(self, context: TaskContext) -> str:
        return f"{context.getLocalProperty('sql.streaming.queryId')}:{context.getLocalProperty('streaming.sql.batchId')}"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._tell(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._tell_abort(messages, f"micro-batch {batchId}")
