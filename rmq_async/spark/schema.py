"""Columns of what is read and of what is written, without Spark: names, their SQL types, and what a message gives for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

__all__ = ["SINK_COLUMNS", "SOURCE_COLUMNS", "source_ddl"]

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
"""Name to SQL type, in order. ``keys`` is one text, keys with a blank between them; the host columns are "ip:port"."""

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
"""Name to the SQL types it may have. ``body`` must be there; ``bornTimestamp`` is accepted and not used."""


def source_ddl(columns: tuple[str, ...]) -> str:
    """The schema of a read, as Spark's DDL."""
    return ", ".join(f"{name} {SOURCE_COLUMNS[name]}" for name in columns)
