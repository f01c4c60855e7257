"""Files that Spark reads, published to the real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .conftest import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]], str]:
    from rmq_async.spark.pipelines.publish import main

    code = main([str(each) for each in arguments])
    output = capsys.readouterr()
    return code, [json.loads(line) for line in output.out.splitlines()], output.err


@pytest.mark.usefixtures("spark")
def test_a_csv_file_by_the_command(topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = topics.make()
    file = tmp_path / "orders.csv"
    lines = [f"{n},c{n % 7},{'' if n % 10 == 0 else 'note ' + str(n)},{n * 2}" for n in range(500)]
    file.write_text("\n".join(["id,customer,note,amount", *reversed(lines)]))
    given = [
        "--json", "--namesrv", topics.namesrv, "--format", "csv", "--path", file, "--read-option", "header=true",
        "--topic", topic, "--select", "id", "--select", "customer", "--select", "note", "--select", "cast(amount as int) amount",
        "--where", "id < 400", "--key", "id", "--tags", "customer", "--sharding-key", "customer", "--order-by", "cast(id as int)",
        "--id", "id", "--property", "note", "--partitions", 3,
    ]  # fmt: skip

    code, (planned,), _ = run(capsys, *given, "--dry-run")
    assert (code, planned["messages"], planned["dry_run"]) == (0, 400, True)
    assert topics.read(topic) == []

    code, (*_, summary), error = run(capsys, *given)
    assert (code, error) == (0, "")
    assert (summary["messages"], summary["arrived"], summary["failed"]) == (400, 400, False)
    assert summary["bytes"] == planned["bytes"]

    messages = topics.read(topic)
    by_id = {message.properties["KEYS"]: message for message in messages}
    assert len(messages) == len(by_id) == 400
    for n in range(400):
        message = by_id[str(n)]
        row = {"id": str(n), "customer": f"c{n % 7}", "note": f"note {n}", "amount": n * 2}
        if n % 10 == 0:
            del row["note"]
        assert json.loads(message.body) == row
        assert (message.tags, message.sharding_key) == (f"c{n % 7}", f"c{n % 7}")
        assert (message.properties.get("note"), message.properties["RMQ_SPARK_ID"]) == (row.get("note"), str(n))
    for customer in range(7):
        ours = [message for message in messages if message.tags == f"c{customer}"]
        assert len({message.queue for message in ours}) == 1
        assert [int(message.properties["KEYS"]) for message in ours] == list(range(customer, 400, 7))


def test_a_frame_at_a_rate(spark: SparkSession, topics: Topics) -> None:
    from rmq_async.spark.pipelines.publish import publish

    topic = topics.make(queues=2)
    frame = spark.range(0, 300, 1, 2).selectExpr("id", "cast(id as string) text", "array('a', null, cast(id as string)) parts")
    summary = publish(frame, topic, body="parts", keys=["id", "text"], rate=200, options={"nameserver": topics.namesrv})
    assert (summary.messages, summary.arrived, summary.failed) == (300, 300, False)
    assert summary.seconds > 1.0
    messages = topics.read(topic)
    assert sorted(int(json.loads(message.body)[2]) for message in messages) == list(range(300))
    numbers = [json.loads(message.body)[2] for message in messages]
    assert [message.properties["KEYS"] for message in messages] == [f"{number} {number}" for number in numbers]


MISTAKES = [
    (["--format", "csv", "--path", "/nowhere/x.csv"], 1, "Path does not exist: file:/nowhere/x.csv"),
    (["--format", "nonsense", "--path", "x"], 1, "Failed to find the data source: nonsense"),
    (["--table", "nothing"], 1, "The table or view `nothing` cannot be found"),
    (["--format", "json", "--path", "{file}", "--key", "nmae"], 2, "there is no column 'nmae' for the key, only id, name"),
    (["--format", "json", "--path", "{file}", "--property", "KEYS"], 2, "there is no column 'KEYS' for the property"),
    (["--format", "json", "--path", "{file}", "--where", "x = 1"], 1, "`x` cannot be resolved"),
    (["--format", "json", "--path", "{file}", "--select", "id KEYS", "--property", "KEYS"], 2, "reserved for the system"),
    (["--format", "json", "--path", "{file}", "--order-by", "id"], 2, "an order needs a sharding key"),
    (
        ["--format", "json", "--path", "{file}", "--option", "requireStatus=x"],
        2,
        "option requireStatus must be SEND_OK or stored",
    ),
    (["--format", "jdbc", "--secret-option", "password=RMQ_NO_SUCH"], 2, "no environment variable 'RMQ_NO_SUCH'"),
    (["--format", "json", "--path", "{file}", "--body", "name"], 1, "has no body: column body is NULL"),
]


@pytest.mark.usefixtures("spark")
def test_mistakes_are_one_sentence(topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"id": 1, "name": null}\n{"id": 2, "name": "y"}\n')
    topic = topics.make(queues=1)
    for arguments, code, sentence in MISTAKES:
        given = [argument.replace("{file}", str(file)) for argument in arguments]
        found, events, error = run(capsys, "--json", "--namesrv", topics.namesrv, "--topic", topic, *given)
        assert (found, sentence in error) == (code, True), (arguments, error)
        assert error.count("\n") == 1
        assert events[-1]["event"] == "error"
