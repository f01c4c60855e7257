"""The examples for Spark: each in the session of the other tests, as a program too but for Java's start."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async.testing.threaded import ThreadedRocketMQ

from .jars import delta_missing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"
SAYS = {
    "spark_read_write.py": "eu: 37\nus: 12\n['order-1', 'order-3']\n",
    "spark_stream.py": "lag after each micro-batch: [600, 200, 0]\n1000 rows\nlag after each micro-batch: [0]\n1300 rows\n",
    "spark_postgresql.py": "customer-0: 434 payments, 281883 in all\n"
    "customer-1: 433 payments, 281017 in all\ncustomer-2: 433 payments, 281450 in all\n",
    "spark_delta.py": "customer-0: 434 payments, 281883 in all\n"
    "customer-1: 433 payments, 281017 in all\ncustomer-2: 433 payments, 281450 in all\n",
    "spark_backlog.py": "600 messages in 3 micro-batches, 0 left\n",
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in EXAMPLES.glob("spark_*.py")} == SAYS.keys()


def test_reading_and_writing(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As a program: its broker, its session; which ends with the tests."""
    ended: list[Any] = []
    monkeypatch.setattr(type(spark), "stop", lambda session: ended.append(session))
    monkeypatch.setattr(sys, "argv", ["spark_read_write.py"])
    monkeypatch.delenv("PYSPARK_PYTHON")
    runpy.run_path(str(EXAMPLES / "spark_read_write.py"), run_name="__main__")
    assert capsys.readouterr().out == SAYS["spark_read_write.py"]
    assert len(ended) == 1
    assert os.environ["PYSPARK_PYTHON"] == sys.executable  # as a program it needs no activated environment


def test_a_stream_and_its_lag(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadedRocketMQ() as server:
        runpy.run_path(str(EXAMPLES / "spark_stream.py"), run_name="example")["main"](spark, server.namesrv)
    assert capsys.readouterr().out == SAYS["spark_stream.py"]


@pytest.mark.deep
def test_totals_in_postgresql(
    spark: SparkSession, postgres_driver: None, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails between its steps: test_postgresql."""
    parts = runpy.run_path(str(EXAMPLES / "spark_postgresql.py"), run_name="example")
    with ThreadedRocketMQ() as server:
        parts["main"](spark, server.namesrv, parts["Totals"](postgres_url.partition("@")[2], "postgres", ""))
    assert capsys.readouterr().out == SAYS["spark_postgresql.py"]


def test_a_delta_table(tmp_path: Path) -> None:
    """As a program, because a session has Delta from its start or not at all. Its parts without Delta: test_delta."""
    if reason := delta_missing():
        pytest.skip(reason)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(EXAMPLES / "spark_delta.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout == SAYS["spark_delta.py"], done.stderr[-2000:]


def test_a_picture_of_a_backlog(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    parts = runpy.run_path(str(EXAMPLES / "spark_backlog.py"), run_name="example")
    batch = {
        "timestamp": "2026-01-01T00:00:01.000Z", "durationMs": {"triggerExecution": 500}, "numInputRows": 6,
        "sources": [{"latestOffset": '{"q": {"t/b/0": 9, "t/b/1": 1}}', "endOffset": '{"q": {"t/b/0": 5, "t/b/1": 1}}'}],
    }  # fmt: skip
    later = {**batch, "timestamp": "2026-01-01T00:00:02.000Z", "numInputRows": 4}
    later["sources"] = [{**batch["sources"][0], "endOffset": batch["sources"][0]["latestOffset"]}]  # type: ignore[index]
    assert parts["drained"]([batch, later]) == ([0.0, 0.5, 1.5], [10, 4, 0])

    picture = tmp_path / "backlog.png"
    with ThreadedRocketMQ() as server:
        parts["main"](spark, server.namesrv, str(picture), messages=600, per_batch=200)
    assert capsys.readouterr().out == SAYS["spark_backlog.py"]
    assert picture.read_bytes().startswith(b"\x89PNG")
