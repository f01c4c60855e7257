"""``format("rocketmq")``: what Spark makes of a name and options."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from ..errors import ConfigError, RocketMQError
from .options import ReadOptions, read_options, read_options_of_either, write_options
from .plain import plainly
from .reading import BatchReader, RefusedStream, StreamReader
from .schema import SOURCE_COLUMNS, source_ddl
from .writing import BatchWriter, StreamWriter, sink_columns

__all__ = ["RocketMQDataSource"]


class RocketMQDataSource(DataSource):
    """RocketMQ topics as DataFrames; options: see docs/spark.md. Every mistake in them is a ConfigError that names it."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def __repr__(self) -> str:
        return f"<RocketMQDataSource {', '.join(sorted(self.options))}>"

    @plainly
    def schema(self) -> str:
        return source_ddl(read_options_of_either(self.options).columns)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(_narrowed(read_options(self.options, streaming=False), schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return StreamReader(_narrowed(read_options(self.options, streaming=True), schema))
        except RocketMQError as error:
            return RefusedStream(error)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = write_options(self.options, streaming=False)
        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use .mode('append')")
        return BatchWriter(options, sink_columns(schema, options))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options = write_options(self.options, streaming=True)
        if overwrite:
            raise ConfigError("a topic cannot be overwritten: use .outputMode('append')")
        return StreamWriter(options, sink_columns(schema, options))


def _narrowed(options: ReadOptions, schema: StructType) -> ReadOptions:
    """With the columns of a schema that the user gave, which must be some of ours."""
    for field in schema.fields:
        wanted = SOURCE_COLUMNS.get(field.name)
        if wanted is None:
            raise ConfigError(f"schema: there is no column {field.name}, only {', '.join(SOURCE_COLUMNS)}")
        if field.dataType.simpleString() != wanted:
            raise ConfigError(f"schema: column {field.name} is {wanted}, not {field.dataType.simpleString()}")
    return replace(options, columns=tuple(field.name for field in schema.fields))
