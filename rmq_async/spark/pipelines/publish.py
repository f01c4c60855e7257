"""Publishes a table or files that Spark reads to a topic, with one message per row.

To run it as a program, call ``rmq spark publish`` or pass this file to ``spark-submit``.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from rmq_async.errors import ConfigError
from rmq_async.spark.options import write_options
from rmq_async.spark.pipelines import job
from rmq_async.spark.pipelines.job import Progress, no_progress
from rmq_async.spark.pipelines.outgoing import Written, access_for, shared_rate, write
from rmq_async.spark.pipelines.session import parallelism
from rmq_async.spark.writing import check_topic
from rmq_protocol.properties import RESERVED_NAMES

ID: Final = "rmqSparkId"
ORDER: Final = "rmqSparkOrder"


@dataclass(frozen=True, kw_only=True)
class PublishSummary:
    """The result of one run.

    Attributes:
        messages: Number of rows that were sent and acknowledged. After a dry run, the number of rows.
        bytes: Size of their bodies.
        arrived: Growth of the topic, including messages of other producers. None after a dry run, and if it could not be read.
    """

    topic: str
    messages: int
    bytes: int
    arrived: int | None
    seconds: float
    dry_run: bool

    @property
    def failed(self) -> bool:
        return self.arrived is not None and self.arrived < self.messages


def publish(
    frame: DataFrame,
    topic: str,
    *,
    body: str | None = None,
    keys: Sequence[str] = (),
    tags: str | None = None,
    sharding_key: str | None = None,
    order_by: str | None = None,
    id: str | None = None,
    properties: Sequence[str] = (),
    partitions: int | None = None,
    rate: int | None = None,
    dry_run: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Progress = no_progress,
) -> PublishSummary:
    """Send every row of ``frame`` to ``topic``.

    ``order_by`` is an SQL expression. The other strings that refer to the frame are names of columns.

    Args:
        body: Column for the body. None sends the whole row as JSON.
        id: Column with the identity of a row, which becomes its ``RMQ_SPARK_ID``.
        keys: Columns that become keys. A value that is NULL or blank is left out.
        properties: Columns that become properties with the same name. A value that is NULL or blank is left out.
        sharding_key: Column for the sharding key. Rows with equal values are sent to one queue, in the order of ``order_by`` if
            it is given.
        partitions: Number of tasks that send, or their maximum number if ``rate`` is given. If None, Spark determines the
            number.
        rate: Maximum number of messages per second of all tasks together, at least 1. None stands for no limit.
        dry_run: True counts the rows and sends nothing.
        options: Options of format rocketmq.
        progress: Called while rows are sent.

    Raises:
        ConfigError: For an invalid option or rate, for a column that does not exist, for a property whose name is reserved for
            the system, and for ``order_by`` without a ``sharding_key``. The errors of requests to the cluster and of Spark are
            raised, too.
    """
    began = monotonic()
    given = dict(options or {}) | {"topic": topic}
    access_for(given)
    columns = MessageColumns(
        body=body, keys=keys, tags=tags, sharding_key=sharding_key, order_by=order_by, id=id, properties=properties
    )
    columns.check(frame)
    rows = columns.select(frame)
    if id is not None:
        given["idColumn"] = ID
    if dry_run:
        found = rows.agg(F.count(F.lit(1)).alias("rows"), F.sum(F.octet_length("body")).alias("bytes")).first()
        assert found is not None
        written = Written(messages=found["rows"], bytes=found["bytes"] or 0, arrived=None)
    else:
        if rate is not None:
            partitions, each = shared_rate(rate, min(partitions or 1 << 20, parallelism(frame.sparkSession)))
            given["maxMessagesPerSecond"] = str(each)
        written = write(_placed(rows, partitions, order_by, capped=rate is not None), given, [topic], progress)
    return PublishSummary(
        topic=topic,
        messages=written.messages,
        bytes=written.bytes,
        arrived=written.arrived,
        seconds=round(monotonic() - began, 3),
        dry_run=dry_run,
    )


@dataclass(frozen=True, kw_only=True)
class MessageColumns:
    """The columns of a table from which messages are built. ``publish`` explains them."""

    body: str | None = None
    keys: Sequence[str] = ()
    tags: str | None = None
    sharding_key: str | None = None
    order_by: str | None = None
    id: str | None = None
    properties: Sequence[str] = ()

    def check(self, frame: DataFrame) -> None:
        """Raise ConfigError for a column that does not exist, a reserved property, and an order without a sharding key."""
        single = (("body", self.body), ("tags", self.tags), ("sharding key", self.sharding_key), ("id", self.id))
        named = [(what, name) for what, name in single if name is not None]
        named += [("key", name) for name in self.keys] + [("property", name) for name in self.properties]
        for what, name in named:
            if name not in frame.columns:
                raise ConfigError(f"there is no column {name!r} for the {what}, only {', '.join(frame.columns)}")
        reserved = [name for name in self.properties if name in RESERVED_NAMES]
        if reserved:
            raise ConfigError(
                f"a property cannot be named {reserved[0]}, which is reserved for the system; give the column another name"
            )
        if self.order_by is not None and self.sharding_key is None:
            raise ConfigError(
                "an order needs a sharding key, because only messages with the same key keep their order; give one, or no order"
            )

    def select(self, frame: DataFrame) -> DataFrame:
        """Return the columns of the sink. NULL and blank keys and properties are left out."""
        chosen = [_body(frame, self.body).alias("body")]
        if self.keys:
            texts = F.array(*(_text(name) for name in self.keys))
            chosen.append(F.filter(texts, lambda key: F.length(F.trim(key)) > 0).alias("keys"))
        for alias, name in (("tags", self.tags), ("shardingKey", self.sharding_key)):
            if name is not None:
                chosen.append(_text(name).alias(alias))
        if self.properties:
            pairs = [part for name in self.properties for part in (F.lit(name), _text(name))]
            texts = F.create_map(*pairs)
            chosen.append(F.map_filter(texts, lambda _, value: F.length(F.trim(value)) > 0).alias("properties"))
        if self.id is not None:
            chosen.append(_text(self.id).alias(ID))
        if self.order_by is not None:
            chosen.append(F.expr(self.order_by).alias(ORDER))
        return frame.select(*chosen)


def read_table(
    spark: SparkSession, *, format: str | None = None, path: Sequence[str] = (), table: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:  # fmt: skip
    """Return a table of the catalogue, or the files (or another source) of a format, as a DataFrame.

    Raises:
        ConfigError: Unless exactly one of ``table`` and ``format`` is given, and for a ``path`` with a ``table``.
    """
    _check_table(format, path, table)
    if table is not None:
        return spark.read.options(**dict(options or {})).table(table)
    assert format is not None
    reader = spark.read.format(format).options(**dict(options or {}))
    return reader.load(list(path)) if path else reader.load()


def _check_table(format: str | None, path: Sequence[str], table: str | None) -> None:
    if table is not None and (path or format is not None):
        raise ConfigError(
            f"table {table!r} and a format or path are both given; give a table of the catalogue, or a format and its path; format "
            "jdbc has an option dbtable"
        )
    if table is None and format is None:
        raise ConfigError("nothing says what to publish: give a table, or a format and a path")


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")


def _text(name: str) -> Column:
    return _column(name).cast("string")


def _body(frame: DataFrame, name: str | None) -> Column:
    if name is None:
        return F.to_json(F.struct(*(_column(each) for each in frame.columns)))
    kind = frame.schema[name].dataType.simpleString()
    if kind in ("binary", "string"):
        return _column(name)
    if kind.startswith(("struct", "array", "map")):
        return F.to_json(_column(name))
    return _text(name)


def _placed(rows: DataFrame, partitions: int | None, order_by: str | None, *, capped: bool) -> DataFrame:
    """Partition the rows by their sharding key, if they have one, and sort them by ``order_by``.

    Args:
        partitions: None lets Spark determine the number.
        capped: True allows fewer partitions, because the tasks share a rate.
    """
    if "shardingKey" in rows.columns:
        together = rows.repartition("shardingKey") if partitions is None else rows.repartition(partitions, "shardingKey")
        return together if order_by is None else together.sortWithinPartitions(ORDER).drop(ORDER)
    if partitions is None:
        return rows
    return rows.coalesce(partitions) if capped else rows.repartition(partitions)


# -- the command


class _Publish:
    DESCRIPTION = "Send any table or file that Spark can read to a topic, one message per row."
    EXAMPLES = """
        rmq spark publish --format csv --read-option header=true --path customers.csv --topic Customers --key id
        rmq spark publish --table shop.orders --where "day = '2026-11-22'" --topic Orders --key id --sharding-key customer
        rmq spark publish --format parquet --path orders --topic Orders --body payload --tags kind --rate 5000 --dry-run
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        source = parser.add_argument_group("what to read")
        source.add_argument("--format", metavar="NAME", help="csv, json, parquet, orc, text, avro, jdbc, ...")
        source.add_argument("--path", **job.SEVERAL, metavar="PATH", help="file or directory; may be repeated")
        source.add_argument("--table", metavar="NAME", help="a table of the catalogue, instead")
        source.add_argument("--read-option", **job.SEVERAL, metavar="NAME=VALUE", help="of the format, such as header=true")
        source.add_argument(
            "--secret-option",
            **job.SEVERAL,
            metavar="NAME=VARIABLE",
            help="of the format; its value is in that environment variable, such as password=DB_PASSWORD",
        )
        source.add_argument("--where", metavar="SQL", help="only rows for which this is true")
        source.add_argument("--select", **job.SEVERAL, metavar="SQL", help="columns to select, such as 'upper(name) name'")
        made = parser.add_argument_group("what to send")
        made.add_argument("--topic", required=True, metavar="NAME", help="topic to send to")
        made.add_argument("--body", metavar="COLUMN", help="default: the whole row as JSON")
        made.add_argument("--key", **job.SEVERAL, metavar="COLUMN", help="may be repeated")
        made.add_argument("--tags", metavar="COLUMN", help="the tag of each message")
        made.add_argument("--sharding-key", metavar="COLUMN", help="rows with the same value go to the same queue")
        made.add_argument("--order-by", metavar="SQL", help="the order of rows with the same sharding key")
        made.add_argument("--id", metavar="COLUMN", help="RMQ_SPARK_ID of each message, by which copies can be found")
        made.add_argument("--property", **job.SEVERAL, metavar="COLUMN", help="a property; may be repeated")
        made.add_argument("--partitions", type=job.whole_number(1, 10**6), metavar="N", help="number of tasks that send")
        made.add_argument("--rate", type=job.whole_number(1, 10**9), metavar="N", help="maximum number of messages per second")
        made.add_argument("--dry-run", action="store_true", help="count, and send nothing")
        parser.epilog = "NULLs are left out of JSON, keys and properties. A row without a body ends the run."

    def check(self, given: argparse.Namespace) -> None:
        """Check the arguments that can be checked without Spark, and that the topic exists."""
        _check_table(given.format, given.path, given.table)
        _read_options(given)
        check_topic(write_options(job.connection_options(given) | {"topic": given.topic}, streaming=False))

    def run(self, spark: SparkSession, given: argparse.Namespace, progress: Progress) -> PublishSummary:
        frame = read_table(spark, format=given.format, path=given.path, table=given.table, options=_read_options(given))
        if given.where:
            frame = frame.where(given.where)
        if given.select:
            frame = frame.selectExpr(*given.select)
        return publish(
            frame,
            given.topic,
            body=given.body,
            keys=given.key,
            tags=given.tags,
            sharding_key=given.sharding_key,
            order_by=given.order_by,
            id=given.id,
            properties=given.property,
            partitions=given.partitions,
            rate=given.rate,
            dry_run=given.dry_run,
            options=job.connection_options(given),
            progress=progress,
        )


def _read_options(given: argparse.Namespace) -> dict[str, str]:
    found = job.named_values("--read-option", given.read_option)
    for name, variable in job.named_values("--secret-option", given.secret_option).items():
        value = os.environ.get(variable)
        if value is None:
            raise ConfigError(f"--secret-option {name}: there is no environment variable {variable!r}; set it")
        found[name] = value
    return found


PUBLISH: Final = _Publish()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``rmq spark publish`` and return the exit code."""
    return job.run_job("publish", PUBLISH, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
