"""Topics of the real broker archived, run after run; what is in the archive is compared with what the broker holds."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async import Message, Producer

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def send(topics: Topics, topic: str, bodies: range) -> None:
    async def send() -> None:
        async with Producer("sends", namesrv=topics.namesrv) as producer:
            for start in range(bodies.start, bodies.stop, 100):
                part = range(start, min(start + 100, bodies.stop))
                await producer.send_batch([Message(topic, b"%d" % n, tags=f"t{n % 2}", keys=f"k{n}") for n in part])

    topics.loop.run(send())


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    from rmq_async.spark.pipelines.archive import main

    code = main([str(each) for each in arguments])
    output = capsys.readouterr()
    return code, [json.loads(line) for line in output.out.splitlines()], output.err


def test_two_runs_archive_everything_once(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.conf.set("spark.sql.streaming.fileSink.log.compactInterval", "2")
    first, second = topics.make(name="0070"), topics.make(queues=2)  # Spark would read the first one's name as a number
    path = tmp_path / "archive"
    given = ["--json", "--namesrv", topics.namesrv, "--path", path, "--topic", first]
    send(topics, first, range(600))

    code, events, error = run(capsys, *given, "--max-offsets", 400)
    assert (code, error) == (0, "")
    *progress, summary = events
    assert [event["messages"] for event in progress] == [400, 200]
    assert [event["left"] for event in progress] == [200, 0]
    assert (summary["messages"], summary["batches"], summary["failed"]) == (600, 2, False)
    assert summary["bytes"] == sum(len(str(number)) for number in range(600))

    send(topics, first, range(600, 700))
    send(topics, second, range(700, 750))
    code, (*progress, again), _ = run(capsys, *given, "--topic", second)
    assert (code, again["messages"], again["batches"]) == (0, 150, 1)
    ends = {key: end for key, (_, end) in summary["offsets"].items()}
    assert {key: start for key, (start, _) in again["offsets"].items() if key in ends} == ends

    there = [*topics.read(first), *topics.read(second)]
    expected = Counter(
        (m.topic, m.queue.broker_name, m.queue.queue_id, m.queue_offset, m.body, m.tags, m.properties["KEYS"], m.msg_id)
        for m in there
    )
    from rmq_async.spark.pipelines.archive import ARCHIVE_DDL

    rows = spark.read.schema(ARCHIVE_DDL).parquet(str(path)).collect()
    assert (
        Counter((r.topic, r.brokerName, r.queueId, r.offset, bytes(r.body), r.tags, r.keys, r.msgId) for r in rows) == expected
    )
    assert {r.date for r in rows} == {datetime.fromtimestamp(m.store_time_ms / 1000, UTC).date() for m in there}
    check_compaction(spark, capsys, [*given, "--topic", second], path)
    send(topics, second, range(750, 800))
    code, (*_, more), _ = run(capsys, *given, "--topic", second)
    assert (code, more["messages"]) == (0, 50), "the sink goes on"
    spark.conf.unset("spark.sql.streaming.fileSink.log.compactInterval")
    assert spark.read.schema(ARCHIVE_DDL).parquet(str(path)).count() == len(there) + 50
    places = {found.parent.relative_to(path).parts[0] for found in path.rglob("*.parquet")}
    assert places == {f"topic={first}", f"topic={second}"}

    for arguments, sentence in mistakes(given, path, second):
        code, _, error = run(capsys, *arguments)
        assert (code, sentence in error) == (2, True), error
        assert error.count("\n") == 1


def check_compaction(spark: SparkSession, capsys: pytest.CaptureFixture[str], given: list[Any], path: Path) -> None:
    """Readers see the same rows in fewer files; old files are there for readers that have begun with them."""
    from rmq_async.spark.pipelines.archive import ARCHIVE_DDL

    def read() -> tuple[list[Any], set[str]]:
        frame = spark.read.schema(ARCHIVE_DDL).parquet(str(path))
        return sorted(frame.select("topic", "queueId", "offset").collect()), set(frame.inputFiles())

    before, files = read()
    on_disk = len(list(path.rglob("*.parquet")))
    code, (*_, summary), error = run(capsys, *given, "--compact")
    assert (code, summary["messages"], error) == (0, 0, "")
    after, fewer = read()
    assert after == before
    assert len(files - fewer) == summary["compacted"] > len(fewer - files) > 0
    assert len(list(path.rglob("*.parquet"))) == on_disk + len(fewer - files)
    for file in path.rglob("*.parquet"):
        os.utime(file, (time.time() - 2 * 86400,) * 2)
    code, _, error = run(capsys, *given, "--compact")
    assert (code, error, read()) == (0, "", (after, fewer))
    assert len(list(path.rglob("*.parquet"))) == len(fewer), "a day later the old files go"
    assert not (path / "_compacting").exists() or not list((path / "_compacting").iterdir())


def mistakes(given: list[Any], path: Path, other: str) -> list[tuple[list[Any], str]]:
    """Each would leave messages out, or mix what does not belong together."""
    lonely, full, checkpoint = path.with_name("lonely"), path.with_name("full"), path / "_checkpoint"
    shutil.copytree(path, lonely, ignore=shutil.ignore_patterns("_checkpoint"))
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    elsewhere = [*given[:4], path.with_name("new"), *given[5:]]
    return [
        ([*given[:-1], other], f"checkpoint {checkpoint} belongs to an archive of topic 0070, which {other} does not include"),
        ([*given[:4], lonely, *given[5:]], f"{lonely} holds an archive of 4 micro-batches, but its checkpoint"),
        ([*elsewhere, "--checkpoint", checkpoint], "says that 4 micro-batches are archived, but"),
        ([*given[:4], full, *given[5:]], f"{full} is not empty and not an archive"),
        ([*elsewhere, "--option", "colums=a"], "unknown option 'colums'; is columns meant?"),
        ([*elsewhere, "--option", "Columns=offset"], "option columns: an archive holds all columns"),
        ([*elsewhere, "--option", "Subscribe=others"], "option Subscribe does not apply to this pipeline"),
    ]
