"""Nothing is lost and nothing is doubled when tasks, workers, brokers and drivers go: a seed or two of what
benchmarks/spark_faults.py does with twenty. Also that the checker sees what it is there for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from .conftest import Loop, Topics
from .faults import checker, queries, runs
from .faults.history import Fault, Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEEDS = (1, 2)
EACH = [pytest.param(seed, marks=[pytest.mark.deep] if seed > 1 else []) for seed in SEEDS]


@pytest.fixture(scope="module")
def real(spark: SparkSession, loop: Loop, topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> runs.Bench:
    queries.register(spark)
    return runs.Bench(spark, loop.run, tmp_path_factory.mktemp("faults"), topics.namesrv)


@pytest.fixture(scope="module")
def restarting(spark: SparkSession, loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[runs.Bench]:
    """On an embedded broker, which restarts in no time and deletes what a test names."""
    servers = EmbeddedRocketMQ()
    loop.run(servers.start())

    def restart(meanwhile: Callable[[], None]) -> None:
        loop.run(servers.stop())
        meanwhile()
        loop.run(servers.start())

    queries.register(spark)
    yield runs.Bench(spark, loop.run, tmp_path_factory.mktemp("faults"), servers.namesrv, restart)
    loop.run(servers.stop())


def prove(*done: Run) -> list[checker.Verdict]:
    """By the checker, in a process of its own."""
    command = [sys.executable, checker.__file__, *(run.directory for run in done)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    verdicts = [checker.Verdict(**json.loads(line)) for line in lines]
    print(*verdicts, sep="\n")
    assert len(verdicts) == len(done)
    assert [verdict for verdict in verdicts if not verdict.good] == []
    return verdicts


@pytest.mark.deep
@pytest.mark.parametrize("seed", SEEDS[:1])  # each takes 20 s of CPU
def test_tasks_that_raise_and_workers_that_are_killed(real: runs.Bench, seed: int) -> None:
    kinds = [(place, action) for place in ("read", "write") for action in ("raise", "kill")]
    (verdict,) = prove(runs.task_faults(real, "tasks fail", seed, "topic", *kinds))
    assert verdict.faults == 4
    assert verdict.dup > 0  # the sink's first attempts had sent something


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (2, [("earliest", "topic")]),
        pytest.param(2, [("latest", "parquet"), ("earliest", "topic")], marks=pytest.mark.deep),
        pytest.param(5, [("latest", "topic"), ("timestamp", "parquet")], marks=pytest.mark.deep),
    ],
)
def test_a_micro_batch_that_was_not_committed_is_read_again_as_it_was(
    real: runs.Bench, seed: int, kinds: list[tuple[str, str]]
) -> None:
    """Of ``latest`` into Parquet in each run: test_stream_queries."""
    verdicts = prove(*runs.replayed(real, seed, kinds))
    assert all(verdict.dup > 0 for verdict, (_, sink) in zip(verdicts, kinds, strict=True) if sink == "topic")


@pytest.mark.parametrize("seed", EACH)
def test_a_broker_that_restarts_is_waited_for(restarting: runs.Bench, seed: int) -> None:
    prove(runs.broker_restart(restarting, seed, "parquet" if seed % 2 else "topic", count=5000))


def test_queues_that_come_later_are_read_from_their_beginning(real: runs.Bench) -> None:
    prove(runs.queue_added(real, 1))


@pytest.mark.parametrize("seed", EACH)
def test_messages_that_are_deleted_fail_the_query_or_are_left_out(restarting: runs.Bench, seed: int) -> None:
    prove(runs.retention(restarting, seed))


@pytest.mark.parametrize("seed", EACH)
def test_messages_that_are_deleted_under_a_reader_are_named(restarting: runs.Bench, seed: int) -> None:
    prove(runs.vanishing(restarting, seed))


def test_the_checker_sees_what_is_lost_doubled_and_changed(tmp_path: Path) -> None:
    run = Run("made up", 1, str(tmp_path), "", "t", "earliest", target="there")
    run.note("produced", queue="t/broker-a/0", first=0, count=4, serial=0, old=False)
    run.note("fired", place="write", action="raise", batch=0, number=0, rows=1)
    right = [checker.Found(f"t:{number}", f"id-{number}") for number in range(4)]
    assert checker.judge(run, right).good
    assert checker.judge(run, [*right, right[2]]).good  # the one row that the failed attempt had been given
    for wrong, counts in (
        (right[1:], {"lost": 1}),
        ([*right, right[0], right[1]], {"dup": 2, "allowed": 1}),
        ([*right, checker.Found("t:0", "id-of-its-own")], {"dup": 1, "unequal": 1}),
        ([*right[:3], checker.Found("t:3", "id-0")], {"unequal": 1}),
        ([*right, checker.Found("t:4", "id-4")], {"extra": 1}),
    ):
        verdict = checker.judge(run, wrong)
        assert not verdict.good
        assert {name: getattr(verdict, name) for name in counts} == counts


def test_a_run_without_its_fault_is_void(tmp_path: Path) -> None:
    run = Run("made up", 1, str(tmp_path), "", "t", "earliest", faults=(Fault("read", "raise", 3),))
    run.note("fired", place="read", action="raise", batch=2, number=0, rows=1)
    verdict = checker.judge(run, [])
    assert verdict.void == "no fault was injected at read of micro-batch 3"
    assert not verdict.good


def test_the_matrix_by_hand_names_its_cases_and_refuses_others() -> None:
    script = str(Path(__file__).parents[2] / "benchmarks" / "spark_faults.py")

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, timeout=60)

    ended = call("--help")
    assert ended.returncode == 0
    for word in (
        "--seeds",
        "--only",
        "worker killed, write",
        "driver killed, parquet",
        "messages deleted",
        "commit taken back",
    ):
        assert word in ended.stdout
    wrong = call("--only", "nonsense")
    assert wrong.returncode == 2
    assert "nonsense" in wrong.stderr
