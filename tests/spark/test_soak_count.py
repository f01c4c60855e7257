"""The counter of benchmarks/spark_soak.py sees what is lost, doubled, unequal and without a cause, in made-up results."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ..support.benchmark_runs import BENCHMARKS

SOURCES = ("a", "b")
QUERY = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/support/spark_soak_count.py"""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("support.spark_soak_count")


def copies(counting: Any, *numbers: int, key: str = "k") -> list[Any]:
    """Messages of the target topic, each the row of its number in one task."""
    return [counting.Copy(f"b:{number}", f"{QUERY}:7:1:{number}", f"{key}{number}") for number in numbers]


def given(counting: Any, **other: Any) -> Any:
    """What shows nothing wrong: four messages of each topic, and one of unknown outcome that is there."""
    right = {
        "acknowledged": {source: {f"{source}:{number}" for number in range(4)} for source in SOURCES},
        "unknown": {source: {f"{source}:4"} for source in SOURCES},
        "parquet": [f"a:{number}" for number in range(5)],
        "topic": copies(counting, *range(5)),
        "tasks": {
            (QUERY, "7", "1"): [counting.Attempt(False, "Success")],
            (QUERY, "7", "0"): [counting.Attempt(True, "Success")],
        },
        "faults": Counter({"kill executor": 1}),
    }
    return counting.Given(**right | other)


def wrong(counting: Any, **other: Any) -> list[str]:
    found: list[str] = counting.judge(given(counting, **other), SOURCES).wrong()
    return found


def test_complete_soak_is_as_promised(counting: Any) -> None:
    verdict = counting.judge(given(counting), SOURCES)
    assert verdict.wrong() == []
    assert (verdict.acknowledged, verdict.unknown, verdict.parquet, verdict.topic, verdict.copies) == (8, 2, 5, 5, 0)
    assert (verdict.attempts, verdict.speculative, verdict.speculative_first) == (2, 1, 1)


def test_message_of_unknown_outcome_may_be_missing(counting: Any) -> None:
    parquet, topic = [f"a:{number}" for number in range(4)], copies(counting, *range(4))
    assert wrong(counting, parquet=parquet, topic=topic) == []


def test_acknowledged_message_that_is_missing_is_lost(counting: Any) -> None:
    parquet, topic = [f"a:{number}" for number in range(1, 5)], copies(counting, 2, 3, 4)
    assert wrong(counting, parquet=parquet, topic=topic) == ["lost_parquet 1", "lost_topic 2"]


def test_row_that_is_in_parquet_twice_is_wrong(counting: Any) -> None:
    assert wrong(counting, parquet=[*(f"a:{number}" for number in range(5)), "a:2"]) == ["twice 1"]


def test_row_that_was_not_sent_is_wrong(counting: Any) -> None:
    parquet, topic = [f"a:{number}" for number in range(6)], copies(counting, *range(6))
    assert wrong(counting, parquet=parquet, topic=topic) == ["extra 2"]


@pytest.mark.parametrize(
    ("reason", "speculative", "cause"),
    [
        ("ExecutorLostFailure", False, "ExecutorLostFailure"),
        ("TaskKilled", True, "speculative attempt"),
        ("Success", False, "micro-batch run again"),
        ("", False, "micro-batch run again"),
    ],
)
def test_copy_of_a_task_with_two_attempts_has_a_cause(counting: Any, reason: str, speculative: bool, cause: str) -> None:
    tasks = given(counting).tasks
    tasks[QUERY, "7", "1"] += [counting.Attempt(speculative, reason)]
    found = given(counting, topic=[*copies(counting, *range(5)), *copies(counting, 1, 2, key="again")], tasks=tasks)
    verdict = counting.judge(found, SOURCES)
    assert verdict.wrong() == []
    assert (verdict.copies, verdict.causes) == (2, {cause: 2})


def test_copy_of_a_task_with_one_attempt_is_without_cause(counting: Any) -> None:
    topic = [*copies(counting, *range(5)), *copies(counting, 1, key="again")]
    assert wrong(counting, topic=topic) == ["without_cause 1"]


def test_copy_of_a_task_that_never_was_is_without_cause(counting: Any) -> None:
    tasks = {(QUERY, "8", "1"): [counting.Attempt(True, "Success")] * 2}
    topic = [*copies(counting, *range(5)), *copies(counting, 1, key="again")]
    assert wrong(counting, topic=topic, tasks=tasks) == ["without_cause 1"]


def test_more_copies_than_attempts_are_without_cause(counting: Any) -> None:
    tasks = given(counting).tasks
    tasks[QUERY, "7", "1"] += [counting.Attempt(False, "ExecutorLostFailure")]
    topic = [*copies(counting, *range(5)), *copies(counting, 1, key="again"), *copies(counting, 1, key="once more")]
    verdict = counting.judge(given(counting, topic=topic, tasks=tasks), SOURCES)
    assert verdict.wrong() == ["without_cause 1"]
    assert (verdict.copies, verdict.causes) == (2, {"ExecutorLostFailure": 1, "none": 1})


def test_copy_with_an_equal_key_is_one_of_the_producer(counting: Any) -> None:
    verdict = counting.judge(given(counting, topic=[*copies(counting, *range(5)), *copies(counting, 1)]), SOURCES)
    assert verdict.wrong() == []
    assert (verdict.copies, verdict.retried) == (1, 1)


def test_body_with_two_ids_and_id_on_two_bodies_are_unequal(counting: Any) -> None:
    tasks = given(counting).tasks
    tasks[QUERY, "7", "1"] += [counting.Attempt(True, "TaskKilled")]
    topic = [*copies(counting, *range(5)), counting.Copy("b:1", f"{QUERY}:7:1:2", "other")]
    assert wrong(counting, topic=topic, tasks=tasks) == ["unequal 2"]
    without_id = [*copies(counting, *range(4)), counting.Copy("b:4", "", "k4")]
    assert wrong(counting, topic=without_id) == ["unequal 1"]


def test_soak_without_faults_is_void(counting: Any) -> None:
    assert wrong(counting, faults=Counter({"kill worker": 3})) == ["void: no executor was killed"]
    tasks = {(QUERY, "7", "1"): [counting.Attempt(False, "Success")]}
    assert wrong(counting, tasks=tasks) == ["void: no task was speculative"]
    nothing: dict[str, set[str]] = {source: set() for source in SOURCES}
    empty = wrong(counting, acknowledged=nothing, unknown=nothing, parquet=[], topic=[])
    assert empty == ["void: no message was acknowledged"]


def event(kind: str, **what: Any) -> str:
    return json.dumps({"Event": f"SparkListener{kind}", **what})


def test_attempts_are_read_from_an_event_log(counting: Any) -> None:
    """Of stages without a micro-batch nothing is kept; a stage that is run again adds to the same task."""
    properties = {"streaming.sql.batchId": "7", "sql.streaming.queryId": QUERY}
    lines = [event("ApplicationStart")]
    for stage, given_properties in ((1, properties), (2, {}), (3, properties)):
        info = {"Stage ID": stage, "Stage Attempt ID": 0}
        lines.append(event("StageSubmitted", **{"Stage Info": info, "Properties": given_properties}))
    ends = {10: "ExecutorLostFailure", 11: "Success", 12: "Success", 13: "Success"}
    for task, stage, partition, speculative in (
        (10, 1, 0, False),
        (11, 1, 0, True),
        (12, 2, 0, False),
        (13, 1, 1, False),
        (14, 3, 1, False),
    ):
        info = {"Task ID": task, "Partition ID": partition, "Speculative": speculative}
        lines.append(event("TaskStart", **{"Stage ID": stage, "Stage Attempt ID": 0, "Task Info": info}))
    for task, reason in ends.items():
        lines.append(event("TaskEnd", **{"Task Info": {"Task ID": task}, "Task End Reason": {"Reason": reason}}))
    assert counting.attempts_of(lines) == {
        (QUERY, "7", "0"): [(False, "ExecutorLostFailure"), (True, "Success")],
        (QUERY, "7", "1"): [(False, "Success"), (False, "")],
    }


def test_only_files_that_the_log_of_the_sink_names_are_listed(counting: Any, tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    for name in ("of%20a task.parquet", "of a failed attempt.parquet"):
        pq.write_table(pa.table({"body": [b"a:1 ..."]}), tmp_path / name)
    named = json.dumps({"path": (tmp_path / "of a task.parquet").as_uri().replace("of%20a", "of%2520a")})
    (log / "0").write_text(f"v1\n{named}\n")
    (log / ".0.crc").write_text("no log")
    assert counting.listed(tmp_path) == [str(tmp_path / "of%20a task.parquet")]


def test_counter_ends_with_an_error_for_a_directory_without_a_soak(counting: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"soak\.json"):
        counting.main(str(tmp_path))
    assert "support.spark_soak_count" in sys.modules
