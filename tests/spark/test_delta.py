"""examples/spark_delta.py: each message is a row once, also where a step of a micro-batch fails.

There is no Delta for later PySparks than 4.2: with these the tests of the table itself are skipped, also where RMQ_REQUIRE_SPARK=1.
Drivers that are killed: delta_kills, by hand.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmq_async.testing.threaded import ThreadedRocketMQ

from . import jars, kills
from .delta_kills import compare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark")

PROGRAM = Path(__file__).parents[2] / "examples" / "spark_delta.py"
ROW = ("broker-a", 0, 7, "customer-1", 7)


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return kills.example("spark_delta.py")


@pytest.fixture
def delta(tmp_path: Path) -> list[Path]:
    """Delta's jars; a machine that cannot have them is no failure."""
    try:
        return jars.delta_jars(tmp_path)
    except jars.NoJarsError as error:
        pytest.skip(str(error))


def test_transaction_of_a_micro_batch_is_the_query_and_its_number(parts: dict[str, Any]) -> None:
    assert parts["transaction"]("5d0c", 17) == {"txnAppId": "5d0c", "txnVersion": "17"}


@pytest.mark.deep
def test_a_micro_batch_that_runs_again_is_the_same_transaction(
    spark: SparkSession, parts: dict[str, Any], tmp_path: Path, active: None
) -> None:
    """What the sink gives Delta: the id in the checkpoint, and the micro-batch's number, also after a failure."""
    seen: list[tuple[dict[str, str], int]] = []

    class Seen(parts["Payments"]):  # type: ignore[misc]
        def write(self, rows: DataFrame, options: dict[str, str]) -> None:
            seen.append((options, rows.count()))
            if len(seen) == 2:
                raise RuntimeError("died in the second micro-batch")

    with ThreadedRocketMQ() as server:
        parts["rmq_async"].run(parts["create_topic"](server.namesrv))
        parts["send"](spark, server.namesrv, 0, 600)
        with pytest.raises(parts["PySparkException"], match="died in the second"):
            parts["run"](spark, server.namesrv, Seen(""), str(tmp_path / "first"))
        parts["run"](spark, server.namesrv, Seen(""), str(tmp_path / "first"))
        parts["run"](spark, server.namesrv, Seen(""), str(tmp_path / "second"))
    first, second = seen[0][0]["txnAppId"], seen[3][0]["txnAppId"]
    assert f'"id":"{first}"' in (tmp_path / "first" / "metadata").read_text()
    assert f'"id":"{second}"' in (tmp_path / "second" / "metadata").read_text()
    assert seen == [
        (parts["transaction"](query, number), rows)
        for query, number, rows in ((first, 0, 400), (first, 1, 200), (first, 1, 200), (second, 0, 400), (second, 1, 200))
    ]


def test_session_without_delta_is_an_error_that_names_the_jar(spark: SparkSession, parts: dict[str, Any], active: None) -> None:
    with pytest.raises(
        RuntimeError, match=rf"no Delta; install pyspark 4.2 .* spark.jars.packages={parts['PACKAGE']}, and the other"
    ):
        parts["check"](spark)


@pytest.mark.parametrize("arguments", [(), ("a", "b")])
def test_program_without_one_directory_says_its_usage(arguments: tuple[str, ...]) -> None:
    done = run_program(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "usage: python spark_delta.py DIRECTORY\n")


@pytest.mark.skipif(not jars.delta_missing(), reason="there is a Delta for this PySpark")
def test_program_with_another_pyspark_says_which_one_it_needs(tmp_path: Path) -> None:
    done = run_program(str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("; install pyspark==4.2.*\n")
    assert not list(tmp_path.iterdir())


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_package_of_the_program_is_the_jar_of_the_tests(parts: dict[str, Any]) -> None:
    assert parts["PACKAGE"] == jars.DELTA[0]


@pytest.mark.parametrize(
    ("version", "reason"), [("4.2.1", ""), ("4.3.0", "pyspark 4.3.0 is installed"), ("4.20.0", "4.20.0 is")]
)
def test_delta_is_there_for_one_pyspark(version: str, reason: str) -> None:
    found = jars.delta_missing(version)
    assert reason in found
    assert bool(found) == bool(reason)


def test_jars_without_maven_are_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(jars.NoJarsError, match="no Maven"):
        jars.copy_jars(jars.DELTA, tmp_path)


@pytest.mark.parametrize(("table", "counted"), [([ROW], (0, 0)), ([], (1, 0)), ([ROW, ROW], (0, 1)), ([(*ROW[:4], 8)], (1, 1))])
def test_comparing_a_table_with_its_topic_counts(table: list[Any], counted: tuple[int, int]) -> None:
    assert compare([ROW], table) == counted


@pytest.mark.deep
def test_drivers_that_are_killed_leave_each_payment_in_the_table_once(delta: list[Path]) -> None:
    """One run of delta_kills: three drivers killed, one that ends."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.delta_kills", "1", "1"], capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "1 runs, 3 kills, 0 lost, 0 twice"
