"""The columns of reads and of writes: names and SQL types.

Spark is imported by the functions that return its types.
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
"""SQL types by name, in order. ``keys`` is one text, keys with a blank between them; the host columns are "ip:port"."""

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
"""SQL types that a column may have, by name. ``body`` must be there; ``bornTimestamp`` is accepted and not used."""


def source_ddl(columns: tuple[str, ...]) -> str:
    """Return the schema of a read as Spark's DDL; a session's reserved words and meaning of ``timestamp`` do not change it."""
    return ", ".join(f"`{name}` {_IN_ANY_SESSION.get(kind, kind)}" for name in columns for kind in [SOURCE_COLUMNS[name]])


_IN_ANY_SESSION: Final = {"timestamp": "timestamp_ltz"}


def source_schema(columns: tuple[str, ...]) -> StructType:
    """Return the schema of a read, built from types, because the parser of a session reads DDL by its own settings."""
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
