"""The benchmark of pulls: its options, and one small run against the embedded broker."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from .benchmark_runs import BENCHMARKS, run

SIDES = ("read", "pull", "floor")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import pull

    return pull


async def test_help_names_sides_and_options() -> None:
    code, out, error = await run("pull.py", "--help")
    assert (code, error) == (0, "")
    for word in (
        "--messages",
        "--body",
        "--rounds",
        "--peers",
        "--namesrv",
        "--json",
        "--check",
        "java-lite",
        "messense",
        *SIDES,
    ):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--peers", "go"), "go; there are java-lite"),
        (("--rounds", "0"), "above 0"),
        (("--messages", "10"), "at least 256"),
        (("--before", "/nowhere"), "holds no rmq_async"),
    ],
)
async def test_an_option_that_cannot_work_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    code, out, error = await run("pull.py", *arguments)
    assert (code, out) == (2, "")
    assert reason in error


async def test_no_name_server_is_one_line_and_no_traceback() -> None:
    code, out, error = await run("pull.py", "--namesrv", "127.0.0.1:1", "--peers", "none")
    assert (code, out) == (2, "")
    assert error.startswith("pull.py: ")
    assert "Traceback" not in error


async def test_a_small_run_reads_everything_on_every_side(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    options = ("--messages", "1000", "--body", "100", "--rounds", "2", "--peers", "none", "--broker-pid", str(os.getpid()))
    async with EmbeddedRocketMQ() as server:
        code, out, error = await run("pull.py", "--namesrv", server.namesrv, *options, "--json", str(file))
    assert code == 0, error
    result = json.loads(file.read_bytes())
    assert result["stored"] == 1024
    assert result["missing"] == {}
    assert tuple(result["sides"]) == SIDES
    assert result["machine"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    for name, side in result["sides"].items():
        assert side["read"] == [1024, 1024]
        assert side["rate"] > 0
        assert f"\n{name} " in out
        ratio = side["rate_ratio"]["read"]
        assert ratio["min"] <= ratio["median"] <= ratio["max"]
    assert [(each["side"], each["messages"], each["bytes"]) for each in result["runs"]] == [
        (name, 1024, 1024 * 100) for _ in range(2) for name in SIDES
    ]


def test_what_is_wrong_is_said(benchmark: ModuleType) -> None:
    def side(count: int, ratio: float = 2.0) -> dict[str, object]:
        return {"read": [count], "rate_ratio": {"read": {"median": ratio}}}

    def result(**peers: dict[str, object]) -> dict[str, object]:
        sides = {"read": side(10), "pull": side(10)}
        return {"stored": 10, "sides": sides | {name.replace("_", "-"): each for name, each in peers.items()}}

    everybody = {"java_lite": side(10), "java_pull": side(10), "messense": side(10)}
    assert benchmark.problems(result(**everybody), True) == []
    slow = everybody | {"java_lite": side(10, 0.9)}
    assert benchmark.problems(result(**slow), False) == []
    assert benchmark.problems(result(**slow), True) == ["read is at 0.90 of the rate of java-lite"]
    del slow["java_lite"]
    assert benchmark.problems(result(**slow), True) == ["java-lite was not measured"]
    lost = result()
    lost["sides"]["read"]["read"] = [9]  # type: ignore[index]
    assert benchmark.problems(lost, False) == ["read: 9 messages read, 10 stored"]
