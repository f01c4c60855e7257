"""The writers for batch writes and streaming writes.

A task succeeds when the brokers have acknowledged every one of its rows.

Rows without a queue or a sharding key are sent in batches, and the producer chooses the queue of each batch. Rows for a queue
(``brokerName`` and ``queueId``, or a sharding key) keep their order within a task, because the task has only one request for a
queue in flight. Rows that cannot be in a batch (delays, retry topics) are sent as single messages. RocketMQ cannot undo a send:
the next attempt of a failed task sends its rows again with the same ``RMQ_SPARK_ID``, and ``abort`` only logs the rows that
stay in the topics.
"""

from __future__ import annotations

import logging
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from rmq_protocol.validation import check_message

from ..errors import ConfigError, InvalidMessageError
from ..producer import Producer
from . import kafka_names
from .connection import Mistakes, client_config
from .options import WriteOptions
from .renewal import current
from .rows import ID_PROPERTY, blocks_of
from .schema import SINK_COLUMNS, SOURCE_COLUMNS
from .sending import Sending
from .short_errors import short_errors
from .worker import worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass
class Sent(WriterCommitMessage):
    """The result of one task.

    Attributes:
        attempt: Number of the task's attempt, from 0.
        bytes: Size of the bodies.
        retried: Number of messages that took more than one attempt to send.
    """

    partition: int
    attempt: int
    rows: int
    bytes: int
    retried: int


def sink_columns(schema: StructType, options: WriteOptions, mistakes: Mistakes | None = None) -> tuple[str, ...]:
    """Return the names of the columns to write.

    Args:
        mistakes: If given, it collects the mistakes, and no error is raised.

    Raises:
        ConfigError: For columns that are missing, unknown, named twice or of the wrong type, for a write without a topic, and
            for an invalid topic in the options. One error reports all mistakes.
    """
    found = Mistakes() if mistakes is None else mistakes
    names = [field.name for field in schema.fields]
    unknown = [name for name in names if name not in SINK_COLUMNS and name != options.id_column]
    if unknown:
        for text in _unknown(unknown, names):
            found.add(text)
    for field in schema.fields:
        if field.name not in unknown:
            found.result(lambda field=field: _check_type(field, options), None)  # type: ignore[misc]
        if names.count(field.name) > 1:
            found.add(f"column {field.name} occurs {names.count(field.name)} times; keep one of them with .select()")
    _find_missing(names, options, found)
    if mistakes is None:
        found.check()
    return tuple(names)


def _check_type(field: StructField, options: WriteOptions) -> None:
    types = ("string",) if field.name == options.id_column else SINK_COLUMNS[field.name]
    given = re.sub(r" collate \w+", "", field.dataType.simpleString())
    if given in types:
        return
    hint = "; cast it, or use to_json() if it has parts" if field.name == "body" else ""
    if given == "timestamp_ntz" and "timestamp" in types:
        hint = "; cast it to timestamp_ltz (spark.sql.timestampType)"
    raise ConfigError(f"column {field.name} must be {' or '.join(types)}, not {given}{hint}")


def _find_missing(names: Sequence[str], options: WriteOptions, found: Mistakes) -> None:
    """Find a missing body, topic or id, a queue without brokerName or queueId, and an invalid topic of the options."""
    stand_ins = {name.lower() for name in names}
    # other columns that are named like these already have an error with the right name
    if "body" not in names and stand_ins.isdisjoint(("body", "value")):
        found.add(f"column body is missing: a write needs it, as binary or string; there are {', '.join(names)}")
    if options.topic is None and "topic" not in names and "topic" not in stand_ins:
        found.add("nothing says which topic to write to: give the option topic or a column topic")
    if options.topic is not None:
        try:
            check_message(options.topic, b"-")
        except InvalidMessageError as error:
            found.add(f"option topic: {error}")
    if options.id_column is not None and options.id_column not in names:
        found.add(f"option idColumn: there is no column {options.id_column}, only {', '.join(names)}")
    other = "brokerName" if "queueId" in names else "queueId"
    if ("queueId" in names) != ("brokerName" in names) and other.lower() not in stand_ins:
        found.add("columns brokerName and queueId name a queue together; one of them is missing: give both or none")


def _unknown(unknown: list[str], names: list[str]) -> list[str]:
    """Return the error messages for columns that the sink does not have."""
    spelt = {known.lower(): known for known in SINK_COLUMNS}
    texts, others = [], []
    for name in unknown:
        if (meant := spelt.get(name.lower())) is not None:
            texts.append(f"there is no column {name} to write, it is spelt {meant}")
        elif (called := kafka_names.SINK_COLUMNS.get(name.lower())) is not None:
            texts.append(f"there is no column {name} to write, it is called {called}")
        else:
            others.append(name)
    return [*texts, _without_counterpart(others, names)] if others else texts


def _without_counterpart(unknown: list[str], names: list[str]) -> str:
    """Return the error message for columns that no other column can replace."""
    what = "there is no column" if len(unknown) == 1 else "there are no columns"
    if set(unknown) <= SOURCE_COLUMNS.keys():
        kept = [repr(name) for name in names if name in _WORTH_KEEPING]
        queue = (
            " (and brokerName and queueId, to send each message to the queue that it came from)" if "queueId" in names else ""
        )
        return f"{what} {', '.join(unknown)} to write, because brokers set them: .select({', '.join(kept)}){queue}"
    return f"{what} {', '.join(unknown)} to write, only {', '.join(SINK_COLUMNS)}; keep only these with .select()"


_WORTH_KEEPING: Final = ("topic", "body", "tags", "keys", "properties", "flag")
"""Columns that are both read and written, without the columns of the queue."""


def check_topic(options: WriteOptions) -> None:
    """Raise TopicNotFoundError if the topic of the options does not exist or has no queue to write to. Raise the errors of
    requests, too.

    A topic that brokers create at its first message is accepted. The driver calls this before there are tasks.
    """
    topic = options.topic
    if topic is None:
        return

    name = f"spark-plan-{uuid.uuid4().hex[:12]}"  # separate connections, which are closed afterwards
    client = replace(client_config(current(options.access)), instance_name=name)  # reads files, so not on the loop

    async def ask() -> None:
        async with Producer(options.group, client=client, stop_timeout=1.0) as producer:
            await producer.fetch_publish_queues(topic)

    worker().run(ask())


def warn_of_speculation(session: SparkSession) -> None:
    """Log a warning if ``spark.speculation`` is on.

    Call this in the driver's own process, because the processes that Spark starts for a data source do not know
    ``spark.speculation``.
    """
    if session.conf.get("spark.speculation", "false") == "true":
        _warn_of_speculation()


def _warn_of_speculation() -> None:
    logger.warning(
        "spark.speculation is on: slow tasks run twice at the same time, and messages that both send are in the topic twice, "
        "with the same %s; turn it off, or let consumers skip copies", ID_PROPERTY,
    )  # fmt: skip


class _Writer(ABC):
    """The common part of all writers: writing in a task, and the logs of commits and aborts."""

    _planned = False
    """Whether the topic of the options was looked up when the write was planned."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        here = worker()
        if attempt:
            logger.warning(
                "partition %d is written again (attempt %d): messages that an earlier attempt sent are in the topic twice, with "
                "the same %s",
                partition, attempt + 1, ID_PROPERTY,
            )  # fmt: skip
        if partition == 0 and context.getLocalProperty("spark.speculation") == "true":
            _warn_of_speculation()
        producer = here.producer(self._options, fresh=attempt > 0)
        job = self._job(context)
        with here.using(producer):
            queues_known = self._queues_known(context)
            topic_known = self._options.topic is not None and (self._planned or queues_known)
            sending = Sending(here, producer, self._options, topic_known=topic_known, queues_known=queues_known)
            try:
                for block in blocks_of(iterator, self._options, job, partition):
                    sending.send(block)
                    del block  # deleted before the next block is read, because blocks may be large
                sending.finish()
            finally:
                sending.close()
        return Sent(partition, attempt, sending.rows, sending.bytes, sending.retried)

    @abstractmethod
    def _job(self, context: TaskContext) -> str:
        """Return the prefix of the ids of rows, which is the same for all attempts of all tasks."""

    def _queues_known(self, context: TaskContext) -> bool:
        """Return whether earlier tasks may have sent to the queues that rows name, in which case sends wait for the queues'
        brokers.
        """
        return False

    def _log(self, messages: Sequence[Any], what: str) -> None:
        sent = [message for message in messages if isinstance(message, Sent)]
        logger.info(
            "%s: %d messages, %d bytes by %d tasks, %d of them sent again",
            what, sum(one.rows for one in sent), sum(one.bytes for one in sent), len(sent), sum(one.retried for one in sent),
        )  # fmt: skip

    def _log_abort(self, messages: Sequence[Any], what: str) -> None:
        done = [message for message in messages if isinstance(message, Sent)]
        logger.error(
            "%s failed: %d of %d tasks had sent all their messages (%d); these stay in the topic, as do the acknowledged messages "
            "of the other tasks", what, len(done), len(messages), sum(one.rows for one in done),
        )  # fmt: skip


class BatchWriter(_Writer, DataSourceArrowWriter):
    _planned = True

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        super().__init__(options, columns)
        self._id = uuid.uuid4().hex
        """The id of the job. It is the same for all attempts of all tasks, because it is pickled with the writer."""

    def _job(self, context: TaskContext) -> str:
        return f"{self._id}:0"

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._log(messages, "write")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._log_abort(messages, "write")


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    def _job(self, context: TaskContext) -> str:
        query, batch = context.getLocalProperty("sql.streaming.queryId"), context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise RuntimeError(
                "Spark does not name the query and micro-batch of this task, so its rows cannot get ids; report this, with the "
                "version of Spark"
            )
        return f"{query}:{batch}"

    def _queues_known(self, context: TaskContext) -> bool:
        return context.getLocalProperty("streaming.sql.batchId") != "0"

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        self._log(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._log_abort(messages, f"micro-batch {batchId}")
