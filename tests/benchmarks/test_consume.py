"""The benchmark of group consumers: its options, one small run against the embedded broker, and its limits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..support.benchmark_runs import BENCHMARKS, run


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import consume

    return consume


def test_help_names_parts_and_sides(program: Callable[..., Any]) -> None:
    code, out, error = program("consume.py", "--help")
    assert (code, error) == (0, "")
    for word in (
        "--parts",
        "--no-java",
        "--before",
        "--check",
        "plain",
        "service",
        "pop",
        "latency",
        "DefaultMQPushConsumer 5.5.0",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--parts", "plain,orderly"), "orderly; there are plain, service, pop, latency"),
        (("--messages", "10"), "at least 256"),
        (("--rate", "10", "--seconds", "1"), "at least 100 messages"),
        (("--before", "/nowhere"), "holds no rmq_async"),
    ],
)
def test_an_option_that_cannot_work_is_refused(arguments: tuple[str, ...], reason: str, program: Callable[..., Any]) -> None:
    code, out, error = program("consume.py", *arguments)
    assert (code, out) == (2, "")
    assert reason in error


@pytest.mark.deep
async def test_a_small_run_handles_everything_once_in_every_part(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = (
        "--warm-ups",
        "0",
        "--messages",
        "512",
        "--body",
        "100",
        "--rounds",
        "1",
        "--rate",
        "1000",
        "--seconds",
        "0.2",
        "--no-java",
    )
    async with EmbeddedRocketMQ() as server:
        place = ("--namesrv", server.namesrv, "--broker-pid", str(os.getpid()))
        code, out, error = await run("consume.py", *place, *options, "--before", str(BENCHMARKS.parent), "--json", str(file))
    assert code == 0, error
    result = json.loads(file.read_bytes())
    assert list(result["parts"]) == ["plain", "service", "pop", "latency"]
    for part, figures in result["parts"].items():
        assert list(figures) == ["ours", "before"]
        assert f"\n{part} " in out
        assert figures["before"]["client_cpu_ratio"]["median"] > 0
    found = [(each["part"], each["side"], each["messages"], each["bytes"]) for each in result["runs"]]
    assert found == [
        (part, side, count, size)
        for part, count, size in (
            ("plain", 512, 51_200),
            ("service", 512, 51_200),
            ("pop", 512, 51_200),
            ("latency", 200, 0),
        )
        for side in ("ours", "before")
    ]
    assert [each["acknowledged"] for each in result["runs"] if each["part"] == "pop"] == [512, 512]
    delays = result["parts"]["latency"]["ours"]
    assert 0 < delays["p50_ms"] <= delays["p99_ms"] < 60_000


def test_figures_beyond_the_limits_are_named(benchmark: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    def rates(cpu: float, rate: float) -> dict[str, object]:
        return {"ours": {}, "java": {"client_cpu_ratio": {"median": cpu}, "rate_ratio": {"median": rate}}}

    def delays(p50: float, p99: float) -> dict[str, object]:
        return {"ours": {"p50_ms": p50, "p99_ms": p99}, "java": {"p50_ms": 1.0, "p99_ms": 4.0}}

    assert benchmark.beyond_limits("plain", rates(0.9, 0.8)) == []
    assert capsys.readouterr().err == ""
    assert benchmark.beyond_limits("plain", rates(1.5, 1.2)) == []
    assert "above the aim" in capsys.readouterr().err
    assert benchmark.beyond_limits("service", rates(2.1, 0.7)) == [
        "service: client CPU is 2.10 x Java's, the limit is 2.0",
        "service: the rate is 0.70 x Java's, not 0.8",
    ]
    assert benchmark.beyond_limits("pop", rates(0.4, 3.0)) == []
    assert benchmark.beyond_limits("pop", rates(0.4, 2.9)) == ["pop: the rate is 2.90 x Java's, not 3.0"]
    assert benchmark.beyond_limits("latency", delays(2.0, 5.0)) == []
    assert benchmark.beyond_limits("latency", delays(2.1, 5.1)) == [
        "latency: p50 is 2.10 ms, Java's 1.00 ms",
        "latency: p99 is 5.10 ms, Java's 4.00 ms",
    ]
    assert benchmark.beyond_limits("plain", {"ours": {}}) == ["plain: Java's push consumer was not measured"]


def test_a_run_of_pop_that_leaves_messages_invisible_is_refused(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stored(*_: object) -> int:
        return 2

    monkeypatch.setattr(benchmark, "stored_messages", stored)
    figures = {"messages": 2, "bytes": 200, "seconds": 1.0, "client_seconds": 1.0, "broker_seconds": None, "rss_mb": 1.0}
    options = benchmark.arguments(["--body", "100"])
    for acknowledged in (2, 1, None):
        line = json.dumps(figures | {"acknowledged": acknowledged})
        side = benchmark.Side([sys.executable, "-c", f"print({line!r})"], {})
        place = benchmark.Target("127.0.0.1:9876")
        if acknowledged == 2:
            assert benchmark.run_once("java", side, "pop", place, "T", options).acknowledged == 2
        else:
            with pytest.raises(
                benchmark.BenchmarkError, match=f"java, pop: the broker took {acknowledged} messages as done, not 2"
            ):
                benchmark.run_once("java", side, "pop", place, "T", options)
