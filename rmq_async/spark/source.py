"""The data source of ``format("rocketmq")``: the entry point that Spark calls with a name and options.

To find the available sources, Spark imports this module in every session that uses any Python data source, even if Spark's
version is too old for this source. Therefore, pyspark is the only package of the extra that is imported before it is needed,
and only users of this source get an error for a missing package.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSource

from ..errors import ConfigError, RocketMQError
from .connection import Mistakes
from .options import ReadOptions, WriteOptions, column_hint, read_options, read_options_of_either, write_options
from .schema import SOURCE_COLUMNS, source_schema
from .short_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

OLDEST: Final = (4, 2)
"""The oldest version of pyspark that is accepted. Earlier versions have no read limits for streams of Python sources, so a run
with AvailableNow would read one micro-batch and end as if it had read all messages.
"""


class RocketMQDataSource(DataSource):
    """The Spark data source ``rocketmq``, which reads and writes topics as DataFrames. docs/spark.md lists its options.

    Spark creates it and calls its methods, which raise ConfigError in the following cases: an option is invalid; a schema has
    no column, has a column twice, has a column that the source or the sink does not have with this type, or has other columns
    than the option ``columns``; a write has no body or no topic, lacks the column of ``idColumn``, or has only one of brokerName
    and queueId; a write is an overwrite; or the version of pyspark is below 4.2. They also raise the errors of requests to the
    cluster. ``streamReader`` itself raises none of these errors. Instead, the reader that it returns raises them when it plans
    or reads.
    """

    @short_errors
    def __init__(self, options: dict[str, str]) -> None:
        _check_version(pyspark.__version__)
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def __repr__(self) -> str:
        return f"<RocketMQDataSource {', '.join(sorted(self.options))}>"

    @short_errors
    def schema(self) -> StructType:
        return source_schema(read_options_of_either(self.options).columns)

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from .reading import BatchReader, PushingReader

        options = _checked(self.options, schema, streaming=False)
        return PushingReader(options) if options.pushdown else BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from .reading import RefusedStream, StreamReader

        try:
            return StreamReader(_checked(self.options, schema, streaming=True))
        except RocketMQError as error:
            return RefusedStream(error)

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from .writing import BatchWriter, check_topic

        options, columns = self._sink(schema, overwrite, streaming=False)
        writer = BatchWriter(options, columns)
        check_topic(options)
        return writer

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from .writing import StreamWriter

        return StreamWriter(*self._sink(schema, overwrite, streaming=True))

    def _sink(self, schema: StructType, overwrite: bool, *, streaming: bool) -> tuple[WriteOptions, tuple[str, ...]]:
        """Return the options of a write and its columns.

        Raises:
            ConfigError: For mistakes in the options or the columns, and for an overwrite.
        """
        from .writing import sink_columns

        mistakes = Mistakes()
        options = write_options(self.options, streaming=streaming, mistakes=mistakes)
        if overwrite:
            mode = "outputMode" if streaming else "mode"
            mistakes.add(f"a topic cannot be overwritten: use .{mode}('append')")
        columns = sink_columns(schema, options, mistakes)
        mistakes.check()
        return options, columns


def _checked(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> ReadOptions:
    """Return the options of a read with the columns of the user's schema.

    Raises:
        ConfigError: For mistakes in the options or the schema.
    """
    mistakes = Mistakes()
    options = read_options(given, streaming=streaming, mistakes=mistakes)
    options = mistakes.result(lambda: _narrowed(options, schema, given), options)
    mistakes.check()
    return options


def _narrowed(options: ReadOptions, schema: StructType, given: Mapping[str, str]) -> ReadOptions:
    """Return the options with the columns of the user's schema.

    Raises:
        ConfigError: For a schema without columns, with a column that is named twice or that the source does not have with this
            type, or with columns that differ from the option ``columns``.
    """
    by_name = {name.lower(): name for name in SOURCE_COLUMNS}
    for field in schema.fields:
        wanted = SOURCE_COLUMNS.get(field.name)
        if wanted is None:
            near = by_name.get(field.name.lower())
            meant = f"; {near} is meant" if near else column_hint(field.name)
            raise ConfigError(f"schema: there is no column {field.name}{meant}")
        if field.dataType.simpleString() != wanted:
            given_type = field.dataType.simpleString()
            hint = "; write timestamp_ltz (spark.sql.timestampType)" if given_type == "timestamp_ntz" else ""
            raise ConfigError(f"schema: column {field.name} must be {wanted}, not {given_type}{hint}")
    columns = tuple(field.name for field in schema.fields)
    if not columns:
        raise ConfigError(f"schema: it has no column; name some of {', '.join(SOURCE_COLUMNS)}")
    twice = [name for name, count in Counter(columns).items() if count > 1]
    if twice:
        raise ConfigError(f"schema: column {twice[0]} occurs more than once; name it once")
    if given.get("columns") is not None and columns != options.columns:
        raise ConfigError(
            f"option columns is {', '.join(options.columns)}, the schema has {', '.join(columns)}; give one of them"
        )
    return replace(options, columns=columns)


def _check_version(version: str) -> None:
    numbers = re.match(r"([0-9]+)\.([0-9]+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < OLDEST:
        raise ConfigError(f"format rocketmq needs pyspark {OLDEST[0]}.{OLDEST[1]} or later, this is {version}")
