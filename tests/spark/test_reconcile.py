"""rmq spark reconcile: what is planted is found, exactly, by each kind of identity; and the exit code says so."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_async import Message, Producer
from rmq_async.errors import ConfigError

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

from pyspark.sql import Observation

from rmq_async.spark.pipelines import reconcile as pipeline
from rmq_async.spark.pipelines import reconcile_frames
from rmq_async.spark.pipelines.arguments import options_for, window
from rmq_async.spark.pipelines.job import parser

# -- without Spark


def test_options_of_the_other_use_are_left_out_and_unknown_ones_are_not() -> None:
    given = {"nameserver": "h:1", "failOnDataLoss": "false", "MAXMESSAGESPERSECOND": "5", "nonsense": "1", "topic": "a"}
    assert options_for("batch read", given, TOPIC="b", tags=None) == {
        "nameserver": "h:1", "failOnDataLoss": "false", "nonsense": "1", "TOPIC": "b",
    }  # fmt: skip
    assert options_for("batch write", given) == {
        "nameserver": "h:1", "MAXMESSAGESPERSECOND": "5", "nonsense": "1", "topic": "a",
    }  # fmt: skip


def test_a_window_is_two_options_in_milliseconds() -> None:
    start = datetime(2026, 11, 20, tzinfo=UTC)
    assert window(None, None) == {}
    assert window(start, start + timedelta(seconds=1.5)) == {
        "startingTimestamp": "1795132800000",
        "startingOffsetsByTimestampStrategy": "latest",
        "endingTimestamp": "1795132801500",
    }
    with pytest.raises(ConfigError, match=r"the window from 2026-11-20.* is empty"):
        window(start, start)
    with pytest.raises(ConfigError, match="has no time zone"):
        window(None, datetime(2026, 11, 20))
    with pytest.raises(ConfigError, match="2026-11-20T00:00:00 has no time zone"):
        window(datetime(2026, 11, 20), start)


def _given(*arguments: str) -> argparse.Namespace:
    made = parser("reconcile", pipeline.JOB)
    return made.parse_args(["--topic", "t", *arguments])


def test_arguments_that_cannot_be_meant_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert _given("--fail-on", "duplicates, unknown").fail_on == ["duplicate", "unknown"]
    assert _given("--acknowledged", "sent,ok").acknowledged == ["sent", "ok"]
    for wrong, expected in (
        (["--fail-on", "lost"], "must be some of missing, unacknowledged, unknown, duplicate, not 'lost'"),
        (["--acknowledged", " ,"], "must be names separated by commas, not ' ,'"),
        (["--slack", "-1"], "must be a whole number from 0 to 86400"),
    ):
        with pytest.raises(SystemExit):
            _given(*wrong)
        assert expected in capsys.readouterr().err


def test_an_outbox_is_known_by_its_columns_unless_others_are_named() -> None:
    columns = ["id", "unique_id", "keys", "state", "updated", "topic", "sent_at"]
    assert pipeline._table(_given("--outbox"), columns) == pipeline.OUTBOX  # noqa: SLF001
    named = pipeline._table(_given("--outbox", "--time-column", "sent_at", "--acknowledged", "sent,sending"), columns)  # noqa: SLF001
    assert (named.id, named.time, named.acknowledged) == ("unique_id", "sent_at", ("sent", "sending"))
    assert pipeline._table(_given(), columns) == pipeline.SentTable()  # noqa: SLF001
    assert pipeline._table(_given("--topic-column", "topic"), columns).topic == "topic"  # noqa: SLF001


@pytest.mark.parametrize(
    ("by", "fail_on", "table", "expected"),
    [
        ("body", (), pipeline.SentTable(), "by must be id, key, spark-id or property:NAME, not 'body'"),
        ("property:", (), pipeline.SentTable(), "by must be"),
        ("id", ("lost",), pipeline.SentTable(), "fail_on must name only missing,"),
        (
            "key",
            (),
            pipeline.SentTable(),
            r"by key: no column of the table is given for it; give one with key= \(--key-column\)",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(by: str, fail_on: tuple[str, ...], table: pipeline.SentTable, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        pipeline.reconcile(None, None, "t", {}, by=by, fail_on=fail_on, table=table)  # type: ignore[arg-type]


def test_an_acknowledged_row_that_cannot_be_looked_for_is_a_failure() -> None:
    totals = {"sent": 3, "acknowledged": 3, "without_id": 0}
    seen = {"messages": 3, "messages_without_id": 1, "matched": 3, "copies": 1, "oldest": None} | dict.fromkeys(
        pipeline.KINDS, 0
    )
    assert not pipeline._summary(totals, seen, 0, ("missing",)).failed  # noqa: SLF001
    assert pipeline._summary(totals | {"without_id": 1}, seen, 0, ("missing",)).failed  # noqa: SLF001
    assert not pipeline._summary(totals, seen | {"duplicate": 1}, 0, ("missing",)).failed  # noqa: SLF001
    assert pipeline._summary(totals, seen | {"duplicate": 1}, 0, ("missing", "duplicate")).failed  # noqa: SLF001


# -- on the real broker


def test_what_is_planted_is_found_and_nothing_else(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = topics.make(queues=3)
    good = 200

    async def send() -> dict[str, str]:
        async with Producer("reconciled", namesrv=topics.namesrv) as producer:
            names = [f"good-{number}" for number in range(good)] + ["twice", "unknown", "pending"]
            results = (await producer.send_batch([Message(topic, b"x", keys=name) for name in names])).results
            ids = {name: result.msg_id for name, result in zip(names, results, strict=True)}
            await producer.send(Message(topic, b"x", keys="twice", unique_id=ids["twice"]))
            await producer.send(Message(topic, b"x"))
        return ids

    ids = topics.loop.run(send())
    nameless = next(message.msg_id for message in topics.read(topic) if not message.properties.get("KEYS"))
    rows = [
        (ids[name], name, "SEND_OK" if number % 2 else "sent") for number, name in enumerate(ids) if name.startswith("good")
    ]
    rows += [(ids["twice"], "twice", "SENT"), ("00" * 16, "lost", "SENT"), (ids["pending"], "pending", "PENDING")]
    rows += [(ids["good-0"], "good-0", "FAILED"), ("11" * 16, "never", "FAILED")]
    place = str(tmp_path / "sent")
    spark.createDataFrame(rows, "message string, key string, state string").coalesce(1).write.parquet(place)
    common = ["--namesrv", topics.namesrv, "--topic", topic, "--sent", place, "--key-column", "key", "--json"]

    out = str(tmp_path / "findings")
    assert pipeline.main([*common, "--id-column", "message", "--out", out]) == 1
    found = {(row.kind, row.key): row for row in spark.read.parquet(out).collect()}
    assert set(found) == {
        ("missing", "lost"), ("duplicate", "twice"), ("unacknowledged", "pending"), ("unknown", "unknown"), ("unknown", None),
    }  # fmt: skip
    missing, twice = found["missing", "lost"], found["duplicate", "twice"]
    assert (missing.id, missing.state, missing["count"], missing.places) == ("00" * 16, "SENT", 0, [])
    assert (twice.id, twice["count"], twice.sent, len(set(twice.places))) == (ids["twice"], 2, 1, 2)
    held = {f"{topic}/{m.queue.broker_name}/{m.queue.queue_id}/{m.queue_offset}": m.msg_id for m in topics.read(topic)}
    assert {held[where] for where in twice.places} == {ids["twice"]}
    assert found["unacknowledged", "pending"].state == "PENDING"
    assert found["unknown", None].id == nameless
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert Counter(line["kind"] for line in lines if "kind" in line) == Counter(kind for kind, _ in found)
    summary = lines[-1]
    oldest = datetime.fromisoformat(summary.pop("oldest"))
    assert abs(datetime.now(UTC) - oldest.astimezone(UTC)) < timedelta(minutes=5)
    assert summary == {
        "event": "summary", "sent": good + 5, "acknowledged": good + 2, "messages": good + 5, "matched": good + 1, "missing": 1,
        "unacknowledged": 1, "unknown": 2, "duplicate": 1, "copies": 1, "without_id": 0, "messages_without_id": 0, "deleted": 0,
        "failed": True,
    }  # fmt: skip

    # From a database, and by key, where a key may have been sent more than once: the second row of good-0 may be a message,
    # "twice" may not.
    table = {"url": "jdbc:derby:memory:sent", "dbtable": "sent", "driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    made = {
        "url": f"{table['url']};create=true",
        "createTableColumnTypes": "message varchar(64), key varchar(64), state varchar(9)",
    }
    spark.read.parquet(place).write.format("jdbc").options(**table | made).save()
    read = [part for name, value in table.items() for part in ("--read-option", f"{name}={value}")]
    common = ["--namesrv", topics.namesrv, "--topic", topic, "--format", "jdbc", *read, "--key-column", "key", "--json"]
    where = "key not in ('lost', 'never')"
    assert pipeline.main([*common, "--id-column", "message", "--by", "key", "--where", where]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = sorted((line["kind"], line["key"]) for line in lines if "kind" in line)
    assert kinds == [("duplicate", "twice"), ("unacknowledged", "pending"), ("unknown", "unknown")]
    keyed = lines[-1]
    assert (keyed["failed"], keyed["messages_without_id"], keyed["matched"]) == (False, 1, good + 1)


def test_rows_of_which_none_is_acknowledged_prove_nothing(
    spark: SparkSession, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = tmp_path / "sent.csv"
    sent.write_text("msgId;state\n1;DONE\n2;WAITS\n3;\n")
    command = ["--namesrv", topics.namesrv, "--topic", topics.make(1), "--sent", str(sent)]
    command += ["--format", "csv", "--read-option", "sep=;"]
    assert pipeline.main(command) == 2
    assert "column state holds DONE, None, WAITS, and only SEND_OK, SENT would mean that; name" in capsys.readouterr().err
    assert pipeline.main([*command, "--id-column", "outbox_id"]) == 2
    assert "id column: there is no column 'outbox_id', only msgId, state" in capsys.readouterr().err


def test_edges_of_a_window_have_slack_on_both_sides(spark: SparkSession) -> None:
    """Seconds since the start of a window of 100 s, with 10 s of slack: of the table's rows, and of the topic's messages."""
    start = datetime(2026, 11, 20, tzinfo=UTC)
    sent = [
        ("late", 99, "SENT"), ("early", -1, "SENT"), ("lost", 50, "SENT"), ("lost before", -5, "SENT"), (None, 50, "SENT"),
        (" ", 50, "PENDING"), ("long ago", -500, "SENT"), ("none", 50, "PENDING"), ("retried", 50, "FAILED"),
        ("retried", 51, " sent "),
    ]  # fmt: skip
    stored = [("late", 105), ("early", 1), ("odd before", -3), ("odd", 20), (None, 30), ("early", 2), ("retried", 52)]
    rows = [(name, "k", state, start + timedelta(seconds=second)) for name, second, state in sent]
    messages = [
        ("t", "b", 0, number, f"id{number}", "k", {"outbox": name} if name else {}, start + timedelta(seconds=second))
        for number, (name, second) in enumerate(stored)
    ]
    columns = "topic string, brokerName string, queueId int, offset bigint, msgId string, keys string"
    window = start, start + timedelta(seconds=100)
    table = pipeline.SentTable(id="name", key="key", time="at")
    left = spark.createDataFrame(rows, "name string, key string, state string, at timestamp").coalesce(1)
    right = spark.createDataFrame(messages, f"{columns}, properties map<string,string>, storeTimestamp timestamp").coalesce(1)
    by = "property:outbox"
    expected = reconcile_frames.table_rows(left, by, table, *window, timedelta(seconds=10))
    seen = Observation()
    joined = expected.join(reconcile_frames.topic_messages(right, by, *window), "identity", "full_outer")
    found = reconcile_frames.findings_of(joined, seen, by).collect()
    assert sorted((row.kind, row.id, row["count"], row.places) for row in found) == [
        ("duplicate", "early", 2, ["t/b/0/1", "t/b/0/5"]), ("missing", "lost", 0, []), ("unknown", "odd", 1, ["t/b/0/3"]),
    ]  # fmt: skip
    counts = seen.get
    assert (counts["messages"], counts["messages_without_id"], counts["matched"], counts["copies"]) == (5, 1, 3, 1)
    assert reconcile_frames.totals_of(expected)["without_id"] == 1
