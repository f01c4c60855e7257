"""The benchmark of scale: one small run on embedded brokers, what it calls a cliff, and that a pile of sends is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..support.benchmark_runs import BENCHMARKS, run


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import scale

    return scale


@pytest.mark.deep
async def test_a_small_run_measures_brokers_and_memory() -> None:
    given = ("--parts", "brokers,memory", "--seconds", "0.1", "--most", "4", "--json", "-")
    code, out, error = await run("scale.py", *given)
    assert code in (0, 1), error  # 1: so short a window may show a cliff, four sends cost more memory each
    parts = json.loads(out)["parts"]
    assert [row["brokers"] for row in parts["brokers"]] == [1, 2]
    for row in parts["brokers"]:
        assert row["failures"] == {}
        assert row["rate"] > 0
        assert row["acknowledged"] > 0
    for row in parts["memory"]:
        assert row["answered"] == row["in flight"] == 4


@pytest.mark.deep
async def test_a_small_run_on_a_cluster_that_is_given() -> None:
    async with EmbeddedRocketMQ() as server:
        given = ("--namesrv", server.namesrv, "--seconds", "0.1", "--max-gb", "0.01", "--json", "-")
        code, out, error = await run("scale.py", "--parts", "in-flight,processes", "--most", "8", *given)
        assert code in (0, 1), error
        parts = json.loads(out)["parts"]
        assert [row["sends in flight"] for row in parts["in-flight"]] == [1, 8]
        assert [row["processes"] for row in parts["processes"]] == [1, 2]
        acknowledged = sum(row["acknowledged"] for rows in parts.values() for row in rows)
        assert len(server.messages("Scale")) > acknowledged  # those of the warm-up too


@pytest.mark.parametrize(
    ("arguments", "reason"), [(("--parts", "queues"), "queues; there are in-flight"), (("--seconds", "0"), "above 0")]
)
def test_an_option_that_cannot_work_is_refused(arguments: tuple[str, ...], reason: str, program: Callable[..., Any]) -> None:
    code, out, error = program("scale.py", *arguments)
    assert (code, out) == (2, "")
    assert reason in error


def test_less_than_half_the_rate_of_its_neighbour_is_a_cliff(scale: ModuleType) -> None:
    rows = [{"brokers": number, "rate": rate, "failures": {}} for number, rate in ((1, 100.0), (10, 50.0), (100, 24.0))]
    assert scale.problems({"brokers": rows}) == ["brokers: a cliff, 50/s at 10 and 24/s at 100"]


def test_missed_targets_and_failures_are_reported(scale: ModuleType) -> None:
    pile = {"send_async": "callbacks", "in flight": 10, "answered": 9, "bytes_each": 2000.0, "failures": {"late": 1}}
    assert scale.problems({"memory": [pile]}) == [
        "memory: 1 x late",
        "memory: 9 of 10 were answered",
        "memory, callbacks: 2,000 bytes each, the target is 1,536",
    ]
