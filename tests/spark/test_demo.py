"""``rmq demo --spark``, in the session of the other tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async import Message, Producer
from rmq_async.cli.app import run_command
from rmq_async.cli.output import Output
from rmq_async.testing.threaded import ThreadedRocketMQ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = ["start Spark", "publish", "read back", "archive", "replay", "reconcile", "reconcile"]


def test_the_demo_shows_every_step_and_that_nothing_is_missing(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert run_command(["demo", "--spark", "--json", "--messages", "600", "--size", "100"]) == 0
    seconds = time.monotonic() - began
    *steps, summary = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [step["step"] for step in steps] == STEPS
    assert [step.get("messages", 600) for step in steps] == [600] * 7
    for step in steps[-2:]:
        assert [step[kind] for kind in ("missing", "unacknowledged", "unknown", "duplicate")] == [0, 0, 0, 0]
    assert (summary["ok"], summary["messages"], summary["problems"]) == (True, 600, [])
    assert sum(step["seconds"] for step in steps) <= summary["seconds"] <= seconds
    assert seconds < 60
    assert spark.range(3).count() == 3, "the session of others goes on"


def test_what_is_missing_damaged_or_twice_there_is_found(spark: SparkSession, tmp_path: Path, capsys: Any) -> None:
    from rmq_async.cli.demo.with_spark import _Demo

    with ThreadedRocketMQ() as server:
        demo = _Demo(20, 64, server, tmp_path, Output(as_json=False))
        server.run(demo._create())
        rows = demo._table(spark).collect()

        def message(number: int, body: str | None = None, customer: str | None = None) -> Message:
            row = rows[number]
            properties = {"customer": customer or row.customer, "RMQ_SPARK_ID": row.key}
            return Message(demo._topic, (body or row.body).encode(), keys=row.key, properties=properties)

        damaged = {3: message(3, body="x" + rows[3].body[1:]), 4: message(4, customer="another"), 5: message(6)}
        messages = [damaged.get(number) or message(number) for number in range(20)]

        async def send() -> None:
            async with Producer("damage", namesrv=server.namesrv) as producer:
                for message in messages:
                    await producer.send(message)

        server.run(send())
        assert demo._read(spark) == 20
        found = demo._reconcile(spark, demo._table(spark), demo._topic, "spark-id", "the topic")
        assert (found.matched, found.missing, found.duplicate) == (19, 1, 1)
        assert demo.verdict(1.0) == 1
    assert demo.problems == [
        "19 of 20 messages were different ones read back",
        "18 of 20 messages were read back undamaged",
        "19 of 20 messages were found by their RMQ_SPARK_ID in the topic",
        "the topic is not what was sent: 1 missing, 0 unacknowledged, 0 unknown, 1 duplicate",
    ]
    output = capsys.readouterr()
    assert output.err.startswith("rmq: demo: 19 of 20 messages were different")
    assert "nothing lost" not in output.out


def ended(environment: dict[str, str], *arguments: str, before: str = "") -> tuple[int, str, str]:
    program = f"{before}import sys; from rmq_async.cli.app import run_command; sys.exit(run_command({list(arguments)!r}))"
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "NAMESRV_ADDR")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=kept | environment)
    return done.returncode, done.stdout, done.stderr


def test_without_pyspark_or_java_one_line_says_so(tmp_path: Path) -> None:
    code, out, err = ended({}, "demo", "--spark", before="import sys; sys.modules['pyspark'] = None; ")
    assert (code, out) == (2, "")
    assert err == "rmq: pyspark is not installed; pip install 'rmq-async[spark]' brings all that this command needs\n"

    code, _, err = ended({"PATH": str(tmp_path)}, "demo", "--spark")
    assert (code, err) == (
        1,
        "rmq: Spark needs Java 17 or later: neither JAVA_HOME nor PATH has a java; install it or set JAVA_HOME\n",
    )

    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho this Java is too old >&2\nexit 1\n")
    java.chmod(0o755)
    code, _, err = ended({"JAVA_HOME": str(tmp_path)}, "demo", "--spark")
    assert (code, err) == (1, "rmq: Spark does not start: this Java is too old; look at JAVA_HOME and SPARK_HOME\n")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--namesrv", "127.0.0.1:9876"], "--spark uses the broker in this process"),
        (["--keep-topic"], "--spark uses the broker in this process"),
        (
            ["--messages", "1000", "--size", "1000000"],
            "1000 messages of 1000000 bytes twice take 1909 MiB, the limit is 192 MiB",
        ),
    ],
)
def test_what_does_not_go_together(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["demo", "--spark", *arguments]) == 2
    assert expected in capsys.readouterr().err
