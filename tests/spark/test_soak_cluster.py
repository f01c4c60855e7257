"""The cluster of processes that benchmarks/spark_soak.py runs its queries on, and what that program refuses."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from ..support.benchmark_runs import BENCHMARKS, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are on 127.0.0.2")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/support/spark_soak_cluster.py"""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("support.spark_soak_cluster")


@pytest.fixture
def cluster(spark: SparkSession, program: Any, tmp_path: Path) -> Iterator[Any]:
    """``spark``: for its checks of what is installed."""
    made = program.SparkCluster(tmp_path / "cluster")
    made.start()
    yield made
    made.stop()


@contextmanager
def driver(cluster: Any, place: Path) -> Iterator[subprocess.Popen[str]]:
    """On the cluster; a line into it is a job, whose result is a line out of it."""
    command = [sys.executable, str(Path(__file__).with_name("soak_job.py")), cluster.url, str(place)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.communicate(timeout=120)  # it ends with its input


def do(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("job\n")
    process.stdin.flush()
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    answer: dict[str, Any] = json.loads(line)
    return answer


@pytest.mark.deep
def test_cluster_whose_executor_and_worker_are_killed_replaces_them(cluster: Any, program: Any, tmp_path: Path) -> None:
    assert cluster.alive() == 2
    with driver(cluster, tmp_path) as process:
        assert do(process)["sum"] == 4950
        cluster.wait(lambda: len(cluster.executors()) == 2, "there were no two executors")
        killed = cluster.executors()[0]
        killed.kill()
        cluster.wait(lambda: killed not in (there := cluster.executors()) and len(there) == 2, "the executor was not replaced")
        worker = cluster.workers[1]
        pid = cluster.kill_worker(worker)
        cluster.restart_worker(worker)
        assert worker.process.pid != pid
        cluster.wait(lambda: len(cluster.executors()) == 2, "the new worker got no executor")
        answer = do(process)
        assert answer["sum"] == 4950
        assert set(answer["hosts"]) <= {"127.0.0.1", "127.0.0.2"}
        pids = [each.process.pid for each in cluster.workers]
        there = [each for pid in pids for each in (psutil.Process(pid), *program.descendants(pid))]
        assert len(there) >= 4  # two executors besides
    cluster.stop()
    assert [each for each in there if each.is_running()] == []


def test_faults_without_an_executor_hit_nothing(program: Any, tmp_path: Path) -> None:
    faults = program.Faults(program.SparkCluster(tmp_path, workers=0), random.Random(1))
    faults.deck = ["stop executor", "kill executor"]
    assert [faults.next(), faults.next()] == [
        {"what": "kill executor", "hit": False},
        {"what": "stop executor", "hit": False},
    ]


async def test_help_of_the_soak_names_its_options() -> None:
    code, out, _ = await run("spark_soak.py", "--help")
    assert code == 0
    for word in ("--minutes", "--seed", "--workers", "--rate", "--keep"):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--workers", "1"], "--workers 1: give 2 or more"),
        (["--minutes", "0"], "--minutes 0: give more than 0"),
        (["--rate", "9", "8"], "the lower one first"),
        (["--keep", str(BENCHMARKS)], "this directory is not empty"),
    ],
)
async def test_soak_with_wrong_options_is_refused(arguments: list[str], part: str) -> None:
    code, _, error = await run("spark_soak.py", *arguments)
    assert code == 2
    assert part in error
