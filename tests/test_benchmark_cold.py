"""The benchmark of cold bursts: a small run on a cluster that is given, and what it calls a missed target."""

from __future__ import annotations

import json
from types import ModuleType

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from .benchmark_runs import BENCHMARKS, run


async def test_small_burst_is_stored() -> None:
    async with EmbeddedRocketMQ() as server:
        code, out, error = await run(
            "cold.py", "--parts", "burst", "--runs", "1", "--most", "300", "--namesrv", server.namesrv, "--json", "-"
        )
        assert code == 0, error
        rows = json.loads(out)["rows"]
        assert [(row["stored"], row["timeout"], row["failures"]) for row in rows] == [(300, None, {}), (300, 15.0, {})]
        assert [len(server.messages(row["topic"])) for row in rows] == [300, 300]


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cold

    return cold


def test_missed_targets_are_reported(cold: ModuleType) -> None:
    hole = [
        {"part": "hole", "sends": sends, "stored": 0, "last": last, "cpu_us": cpu}
        for sends, last, cpu in ((1_000, 4.0, 50.0), (20_000, 5.1, 60.0), (65_535, 9.0, 101.0))
    ]
    burst = {"part": "burst", "sends": 20_000, "failures": {"late": 3}}
    assert cold.problems([*hole, burst]) == [
        "hole 20,000: the last one ended after 5.10 s, the target is 5.0",
        "burst 20,000: 3 x late",
        "hole: 101 us a call among 65,535, 50 among 1,000",
    ]


async def test_unknown_part_is_refused() -> None:
    code, out, error = await run("cold.py", "--parts", "warm")
    assert (code, out) == (2, "")
    assert "burst, hole" in error
