"""Columns of Arrow: the schema Spark compares with, every column's value, sizes of batches, odd properties."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from rmq_async.spark.arrow import BYTES, ROWS, Rows, arrow_schema, record_batches
from rmq_async.spark.schema import SOURCE_COLUMNS
from rmq_protocol.columns import read_columns
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import encode_stored

COLUMNS = tuple(SOURCE_COLUMNS)
QUEUE = MessageQueue("orders", "broker-a", 3)
PROPERTIES = b"UNIQ_KEY\x01U1\x02TAGS\x01paid\x02KEYS\x01a b\x02color\x01red\x02"


def record(offset: int = 7, body: bytes = b"hello", properties: bytes = PROPERTIES, **changes: Any) -> bytes:
    fields = {
        "topic": "orders",
        "queue_id": 3,
        "commit_log_offset": 4096,
        "flag": -5,
        "sys_flag": 8,
        "born_time_ms": 1_700_000_000_123,
        "born_host": "10.1.2.3:40000",
        "store_time_ms": 1_700_000_000_456,
        "store_host": "127.0.0.1:10911",
        "reconsume_times": 2,
    }
    return encode_stored(body=body, queue_offset=offset, properties=properties, **{**fields, **changes})


def filled(*blocks: tuple[MessageQueue, bytes], columns: tuple[str, ...] = COLUMNS) -> Rows:
    rows = Rows(columns)
    for queue, block in blocks:
        found = read_columns(block, rows.stored, queue)
        assert found == ((), None)
        rows.came(queue)
    return rows


def table(*blocks: tuple[MessageQueue, bytes], columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    batches = list(record_batches([filled(*blocks, columns=columns)], columns))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(columns)
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


@pytest.mark.parametrize("columns", [COLUMNS, ("body", "offset"), ("properties", "storeTimestamp", "queueId")])
def test_the_schema_is_the_one_that_spark_compares_with(columns: tuple[str, ...]) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructField,
        StructType,
        TimestampType,
    )

    kinds = {
        "string": StringType(), "int": IntegerType(), "bigint": LongType(), "binary": BinaryType(), "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }  # fmt: skip
    schema = StructType([StructField(name, kinds[SOURCE_COLUMNS[name]]) for name in columns])
    assert all(kind.simpleString() == name for name, kind in kinds.items())
    assert arrow_schema(columns) == to_arrow_schema(schema, timezone="UTC")


def test_every_column_has_its_value() -> None:
    expected = {
        "topic": "orders",
        "brokerName": "broker-a",
        "queueId": 3,
        "offset": 7,
        "msgId": "U1",
        "offsetMsgId": "7F00000100002A9F0000000000001000",
        "tags": "paid",
        "keys": "a b",
        "body": b"hello",
        "properties": [("UNIQ_KEY", "U1"), ("TAGS", "paid"), ("KEYS", "a b"), ("color", "red")],
        "bornTimestamp": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        "storeTimestamp": datetime(2023, 11, 14, 22, 13, 20, 456_000, UTC),
        "bornHost": "10.1.2.3:40000",
        "storeHost": "127.0.0.1:10911",
        "reconsumeTimes": 2,
        "flag": -5,
        "sysFlag": 8,
    }
    assert table((QUEUE, record())) == [expected]
    for name in COLUMNS:
        assert table((QUEUE, record()), columns=(name,)) == [{name: expected[name]}]


def test_rows_of_several_queues_and_hosts_in_one_batch() -> None:
    other = MessageQueue("orders", "broker-b", 9)
    rows = table(
        (QUEUE, record(1) + record(2, born_host="[::1]:5", store_host="[::2]:6", body=b"", properties=b"")),
        (other, record(1, properties=b"TAGS\x01x\x02")),
        (QUEUE, record(3, topic="t" * 200)),
    )
    assert [(row["brokerName"], row["queueId"], row["offset"], row["topic"][:3]) for row in rows] == [
        ("broker-a", 3, 1, "ord"), ("broker-a", 3, 2, "ord"), ("broker-b", 9, 1, "ord"), ("broker-a", 3, 3, "ttt")
    ]  # fmt: skip
    assert [row["msgId"] for row in rows] == ["U1", rows[1]["offsetMsgId"], rows[2]["offsetMsgId"], "U1"]
    assert (rows[1]["offsetMsgId"], rows[1]["storeHost"], rows[1]["bornHost"]) == (
        "00000000000000000000000000000002000000060000000000001000", "[::2]:6", "[::1]:5"
    )  # fmt: skip
    assert [(row["tags"], row["keys"], row["body"]) for row in rows] == [
        ("paid", "a b", b"hello"), (None, None, b""), ("x", None, b"hello"), ("paid", "a b", b"hello")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        (b"a\x01\x31\x02b\x012", {"a": "1", "b": "2"}),
        (b"a\x011\x02b\x012\x02a\x013\x02", {"a": "3", "b": "2"}),
        (b"a\x01x\x01y\x02", {"a": "x\x01y"}),
        (b"a\x01\x02\x01b\x02c\x02\x02d\x01e\x02", {"d": "e"}),
        (b"\xff\x01\xc3\x28\x02", {"\ufffd": "\ufffd("}),
        ("ключ\x01знач\x02".encode(), {"ключ": "знач"}),
        (b"", {}),
    ],
)
def test_properties_are_read_as_everywhere_else(text: bytes, properties: dict[str, str]) -> None:
    rows = table((QUEUE, record(1) + record(2, properties=text) + record(3)))
    assert [dict(row["properties"]) for row in rows][1] == properties
    assert [row["tags"] for row in rows] == ["paid", None, "paid"]
    assert [row["msgId"] for row in rows] == ["U1", "7F00000100002A9F0000000000001000", "U1"]


@pytest.mark.parametrize("last", [("\x02", "\x02", "\x02"), ("", "", ""), ("\x02", "", "\x02")], ids=["all", "none", "some"])
def test_last_separator_of_properties_may_be_missing(last: tuple[str, ...]) -> None:
    texts = [f"UNIQ_KEY\x01U{number}\x02TAGS\x01t{number}{end}".encode() for number, end in enumerate(last)]
    rows = table((QUEUE, b"".join(record(number, properties=text) for number, text in enumerate(texts))))
    assert [(row["msgId"], row["tags"], len(row["properties"])) for row in rows] == [
        ("U0", "t0", 2),
        ("U1", "t1", 2),
        ("U2", "t2", 2),
    ]


def test_hosts_of_several_senders() -> None:
    hosts = [f"10.0.0.{number % 3}:{200 + number % 2}" for number in range(12)]
    rows = table((QUEUE, b"".join(record(number, born_host=host) for number, host in enumerate(hosts))))
    assert [row["bornHost"] for row in rows] == hosts


def test_a_time_beyond_microseconds_is_null() -> None:
    rows = table(
        (QUEUE, record(1) + record(2, born_time_ms=1 << 62, store_time_ms=-1)), columns=("bornTimestamp", "storeTimestamp")
    )
    assert [row["bornTimestamp"] is None for row in rows] == [False, True]
    assert rows[1]["storeTimestamp"] == datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)


def test_batches_are_bounded_by_rows_and_by_bytes() -> None:
    rows = filled((QUEUE, b"".join(record(offset) for offset in range(ROWS * 2 + 1))), columns=("offset", "properties"))
    assert rows.full
    batches = list(record_batches([rows], ("offset", "properties")))
    assert [batch.num_rows for batch in batches] == [ROWS, ROWS, 1]
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(ROWS * 2 + 1))
    large = filled((QUEUE, record(1, bytes(BYTES - 1000))))
    assert not large.full
    read_columns(record(2, bytes(1000)), large.stored, QUEUE)
    assert large.full


def test_batches_are_bounded_by_properties() -> None:
    """Which take more while maps are made of them than bodies do; those that no column needs take nothing."""
    wide = b"trace\x01" + b"x" * 16_000 + b"\x02"
    records = [record(offset, b"x", wide) for offset in range(BYTES // 16_000)]
    assert not filled((QUEUE, b"".join(records[: len(records) // 5]))).full
    assert filled((QUEUE, b"".join(records[: len(records) // 3]))).full
    assert not filled((QUEUE, b"".join(records)), columns=("offset", "body")).full
