"""The benchmark of cold bursts: a small run on a cluster that is given, and what it calls a missed target."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..support.benchmark_runs import BENCHMARKS, run


async def test_small_burst_is_stored() -> None:
    async with EmbeddedRocketMQ() as server:
        code, out, error = await run(
            "cold.py", "--parts", "burst", "--runs", "1", "--most", "300", "--namesrv", server.namesrv, "--json", "-"
        )
        assert code == 0, error
        rows = json.loads(out)["rows"]
        assert [(row["stored"], row["timeout"], row["failures"]) for row in rows] == [(300, None, {}), (300, 15.0, {})]
        assert [len(server.messages(row["topic"])) for row in rows] == [300, 300]


async def test_sends_to_a_broker_just_started() -> None:
    async with EmbeddedRocketMQ() as server:
        code, out, error = await run(
            "cold.py", "--parts", "start,oneway", "--runs", "1", "--most", "300", "--namesrv", server.namesrv, "--json", "-"
        )
        assert code == 0, error
        rows = json.loads(out)["rows"]
        assert [(row["part"], row["stored"], row["failures"]) for row in rows] == [("start", 300, {}), ("oneway", 300, {})]
        assert all(row["load"] >= 0 for row in rows)


def test_check_is_five_brokers(cold: ModuleType) -> None:
    options = cold.parse(["--check"])
    assert (options.parts, options.runs) == (["start"], 5)
    assert (cold.parse([]).parts, cold.parse([]).runs) == (["burst", "hole"], 3)


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
    oneway = {"part": "oneway", "sends": 60_000, "failures": {"dropped by the broker": 215}}
    assert cold.problems([*hole, burst, oneway]) == [
        "hole 20,000: the last one ended after 5.10 s, the target is 5.0",
        "burst 20,000: 3 x late",
        "oneway 60,000: 215 x dropped by the broker",
        "hole: 101 us a call among 65,535, 50 among 1,000",
    ]


def test_unknown_part_is_refused(program: Callable[..., Any]) -> None:
    code, out, error = program("cold.py", "--parts", "warm")
    assert (code, out) == (2, "")
    assert "burst, start, oneway, hole" in error
