"""The acceptance run of benchmarks: its interval, what it refuses, and one small run against itself."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from .benchmark_runs import BENCHMARKS, run


@pytest.fixture
def acceptance(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("acceptance")


@pytest.mark.parametrize(("count", "low", "high"), [(6, 1, 6), (9, 2, 8), (20, 6, 15), (41, 14, 28)])
def test_interval_of_ratios_has_the_ranks_of_the_binomial_distribution(
    acceptance: Any, count: int, low: int, high: int
) -> None:
    found = acceptance.interval_of([float(number) for number in range(count, 0, -1)])
    assert (found.low, found.high) == (low, high)
    assert found.median == (count + 1) / 2


def test_interval_of_few_ratios_is_without_ends(acceptance: Any) -> None:
    found = acceptance.interval_of([1.0, 1.1, 0.9, 1.0, 1.0])
    assert (found.median, found.low, found.high, found.narrow) == (1.0, 0.0, math.inf, False)


async def test_acceptance_of_another_folder_is_refused(tmp_path: Path) -> None:
    code, _, error = await run("acceptance.py", str(tmp_path), "--namesrv", "127.0.0.1:1")
    assert code == 2
    assert "is no checkout of rmq-async" in error


async def test_acceptance_of_a_version_against_itself_prints_both_intervals() -> None:
    bounds = (
        "--rounds",
        "1",
        "--seconds",
        "0.2",
        "--messages",
        "2000",
        "--seed",
        "7",
        "--limit",
        "inf",
        "--with",
        "plain",
        "pulls",
    )
    async with EmbeddedRocketMQ() as server:
        code, out, error = await run("acceptance.py", str(BENCHMARKS.parent), "--namesrv", server.namesrv, *bounds)
    assert code == 0, error
    lines = out.splitlines()
    assert lines[0].startswith("seed 7")
    assert len(lines) == 3
    assert all("new/old" in line and "old/old" in line and line.endswith("1 rounds   within inf") for line in lines[1:])
