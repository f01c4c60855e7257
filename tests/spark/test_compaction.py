"""Which files of an archive are rewritten, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkAttributeError

from rmq_async.errors import ConfigError
from rmq_async.spark.pipelines.compaction import (
    SMALL,
    Entry,
    entries_of,
    log_text,
    may_be_deleted,
    names_after,
    newest_list,
    small_files,
)
from rmq_async.spark.pipelines.files import Files


class Connected:
    """A session of Spark Connect."""

    @property
    def _jvm(self) -> None:
        raise PySparkAttributeError(errorClass="JVM_ATTRIBUTE_NOT_SUPPORTED", messageParameters={"attr_name": "_jvm"})


def test_session_of_connect_is_refused_in_a_sentence() -> None:
    session: Any = Connected()
    with pytest.raises(ConfigError, match="this session is one of Spark Connect; run the pipeline with spark-submit"):
        Files(session)


def line(path: str, size: int, **more: object) -> str:
    return json.dumps({"path": path, "size": size, "isDir": False, "modificationTime": 1, "action": "add", **more})


def test_newest_list() -> None:
    assert newest_list(["0", "9.compact", "19.compact", "20", ".19.compact.crc", "3.compact.tmp"]) == "19.compact"
    assert newest_list(["0", "1"]) is None
    assert names_after(["0", "9.compact", "10", "11", ".11.crc"], "9.compact") == ["10", "11"]


def test_log_is_written_as_it_was_read() -> None:
    text = "\n".join(("v1", line("file:/a/topic=t/part-0", 5), line("file:/a/topic=%2525DLQ%2525g/part-1", 7)))
    entries = entries_of(text)
    assert [(entry.directory, entry.size) for entry in entries] == [("file:/a/topic=t", 5), ("file:/a/topic=%2525DLQ%2525g", 7)]
    assert log_text(entries) == text
    assert entries_of("v1") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v2\n{}", "has version 'v2', not 'v1'; this release cannot compact"),
        ("v1\n" + line("p", 1, action="delete"), "holds an action 'delete'"),
        ("", "has version '', not 'v1'"),
        ("v1\nno JSON", "must name path, size and action of each file, not 'no JSON'"),
        ("v1\n[]", "must name path, size and action of each file"),
        ('v1\n{"action": "add"}', "must name path, size and action of each file"),
        ('v1\n{"action": "add", "path": "p", "size": null}', "must name path, size and action of each file"),
        ('v1\n{"action": "add", "path": "p", "size": 1e999}', "must name path, size and action of each file"),
    ],
)
def test_log_of_another_spark_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        entries_of(text)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("file:/archive/topic=T/date=2026-11-26/part-00000-1f-c000.zstd.parquet", True),
        ("file:/archive/topic=T/date=2026-11-26/compacted-1f-part-0.parquet", True),
        ("file:/archive/topic=T/date=2026-11-26/report.parquet", False),
        ("file:/archive/topic=T/part-00000.parquet", False),
        ("file:/archive/part-00000.parquet", False),
        ("file:/archive/reports/date=2026-11-26/part-00000.parquet", False),
    ],
)
def test_file_of_others_is_not_deleted(name: str, expected: bool) -> None:
    assert may_be_deleted(name) is expected


def test_directories_with_one_small_file_stay() -> None:
    sizes = {"a/1": 1, "a/2": SMALL, "a/3": 2, "b/1": 1, "b/2": SMALL, "c/1": SMALL, "c/2": SMALL}
    listed = [Entry(uri, size, "") for uri, size in sizes.items()]
    assert {directory: [entry.uri for entry in small] for directory, small in small_files(listed).items()} == {
        "a": ["a/1", "a/3"]
    }
