"""The columns of reads and writes: their names and SQL types.

Only the functions that return Spark's types import Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SOURCE_COLUMNS: Final[Mapping[str, str]] = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "offset": "bigint",
    "msgId": "string",
    "offsetMsgId": "string",
    "tags": "string",
    "keys": "string",
    "body": "binary",
    "properties": "map<string,string>",
    "bornTimestamp": "timestamp",
    "storeTimestamp": "timestamp",
    "bornHost": "string",
    "storeHost": "string",
    "reconsumeTimes": "int",
    "flag": "int",
    "sysFlag": "int",
}
"""SQL types by column name, in order. ``keys`` is one string with blanks between the keys. The host columns have the form
"ip:port".
"""

SINK_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "brokerName": ("string",),
    "queueId": ("int", "bigint", "smallint", "tinyint"),
    "delayLevel": ("int", "bigint", "smallint", "tinyint"),
    "deliverTimestamp": ("timestamp",),
    "flag": ("int", "bigint", "smallint", "tinyint"),
    "bornTimestamp": ("timestamp",),
}
"""SQL types that a column may have, by column name. ``body`` is required. ``bornTimestamp`` is accepted but not used."""


def source_ddl(columns: tuple[str, ...]) -> str:
    """Return the schema of a read as Spark's DDL. A session's reserved words and its meaning of ``timestamp`` do not affect
    this schema.
    """
    return ", ".join(f"`{name}` {_IN_ANY_SESSION.get(kind, kind)}" for name in columns for kind in [SOURCE_COLUMNS[name]])


_IN_ANY_SESSION: Final = {"timestamp": "timestamp_ltz"}


def source_schema(columns: tuple[str, ...]) -> StructType:
    """Return the schema of a read. It is built from type objects and not parsed from DDL, because the settings of a Spark session
    change how DDL is parsed.
    """
    from pyspark.sql import types

    made = {
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "binary": types.BinaryType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    return types.StructType([types.StructField(name, made[SOURCE_COLUMNS[name]]) for name in columns])
