"""The comparison with other clients: its options, what it makes of runs (made up here), and one small run of ours alone."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rmq_async.embedded import EmbeddedRocketMQ

from ..support.benchmark_runs import BENCHMARKS, run


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import compare
    from support import compare_criteria, compare_peers, compare_production, compare_report, compare_runs

    return SimpleNamespace(
        main=compare,
        criteria=compare_criteria,
        peers=compare_peers,
        production=compare_production,
        report=compare_report,
        Run=compare_runs.Run,
    )


def made(compare: Any, key: str, rate: float, **more: Any) -> Any:
    side, _, mode = key.partition(":")
    figures = {"messages": 1000, "total": 1000, "stored": 1000, "client_us": 10.0, "p99_us": 1000.0, "visible_rate": rate}
    return compare.Run(side=side, mode=mode, rate=rate, seconds=1.0, **(figures | more))


def rounds_of(compare: Any, **rates: list[float]) -> list[dict[str, Any]]:
    keys = {"ours": "ours:depth-64", "java": "java:sync-64", "node": "node:await-64"}
    count = len(next(iter(rates.values())))
    return [{keys[name]: made(compare, keys[name], each[number]) for name, each in rates.items()} for number in range(count)]


# -- options


def test_help_names_peers_modes_and_options(program: Callable[..., Any]) -> None:
    code, out, error = program("compare.py", "--help")
    assert (code, error) == (0, "")
    options = ("--rounds", "--seconds", "--warm-up", "--body", "--max-gb", "--json", "--keep-builds", "--build-dir")
    for word in ("java", "go", "node", "messense", "grpc", "adaptive-1024", "batch-8", "--check", "--namesrv", *options):
        assert word in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--peers", "java,perl"), "perl is unknown; there are java, go, node, messense, grpc, none"),
        (("--modes", "depth-1,oneway"), "oneway is unknown; there are depth-1"),
        (("--modes", ""), "none given"),
        (("--rounds", "0"), "must be above 0"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(arguments: tuple[str, ...], reason: str, program: Callable[..., Any]) -> None:
    code, out, error = program("compare.py", *arguments)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("compare.py: --")
    assert reason in error


def test_no_name_server_is_one_line_and_no_traceback(program: Callable[..., Any]) -> None:
    code, out, error = program("compare.py", "--namesrv", "127.0.0.1:1", "--peers", "none")
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("compare.py: ")


# -- what is made of runs


def test_each_contender_is_a_mode_of_a_peer_and_stands_in_one_table(compare: Any) -> None:
    from support.runs import MODES

    peers = compare.peers
    for mode, others in peers.CONTENDERS.items():
        assert mode in MODES
        assert [mode in modes for modes in peers.SECTIONS.values()].count(True) == 1
        for key in others:
            name, _, theirs = key.partition(":")
            assert theirs in peers.PEERS[name].modes
    run = {key for others in peers.CONTENDERS.values() for key in others}
    assert run == {f"{name}:{mode}" for name, peer in peers.PEERS.items() for mode in peer.modes}
    for criterion in compare.criteria.CRITERIA:
        assert set(criterion.others) <= run
        assert criterion.mode in peers.CONTENDERS


@pytest.mark.parametrize("name", ["java", "go", "node", "messense", "grpc"])
def test_the_manifest_of_a_peer_names_the_version_that_is_reported(compare: Any, name: str) -> None:
    manifest = {"java": "pom.xml", "go": "go.mod", "node": "package.json"}.get(name, "requirements.txt")
    text = (BENCHMARKS / "peers" / name / manifest).read_text()
    assert compare.peers.PEERS[name].version in text
    committed = [path.name for path in (BENCHMARKS / "peers" / name).iterdir()]
    assert not {"package-lock.json", "node_modules", "venv", "classes"} & set(committed)


def test_ratios_are_taken_within_a_round(compare: Any) -> None:
    rounds = rounds_of(compare, ours=[100, 300, 50], java=[50, 100, 50])
    found = compare.report.summary(rounds)
    ratio = found["ratios"]["depth-64"]["java:sync-64"]["rate"]
    assert ratio == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": [2.0, 3.0, 1.0]}
    assert found["sides"]["ours:depth-64"]["rate"]["median"] == 100
    text = compare.report.table(found, {"java": ""}, ["met: this"])
    assert "x 2.00 (1.00 - 3.00)" in text
    assert text.endswith("\nmet: this")


def test_a_round_without_figures_of_a_peer_is_passed_over_and_reported(compare: Any) -> None:
    rounds = rounds_of(compare, ours=[100, 300], java=[50, 100])
    rounds[0]["java:sync-64"] = compare.Run(side="java", mode="sync-64", error="exit code 1: nothing")
    found = compare.report.summary(rounds)
    assert found["ratios"]["depth-64"]["java:sync-64"]["rate"]["rounds"] == [3.0]
    assert "Java send, 64 threads: a run without figures: exit code 1: nothing" in compare.report.table(found, {})


def test_a_peer_that_stores_less_than_it_acknowledges_is_shown_so(compare: Any) -> None:
    rounds = rounds_of(compare, ours=[100], java=[50])
    rounds[0]["java:sync-64"].stored = 250
    text = compare.report.table(compare.report.summary(rounds), {})
    assert "250 (!)" in text
    assert "Java send, 64 threads: 1,000 acknowledged, 750 of them (75%) not stored" in text


def test_a_peer_that_cannot_be_built_is_named_with_its_reason(
    compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    built = compare.peers.build("go", tmp_path)
    assert built.command is None
    assert built.reason == "no go in PATH"
    text = compare.report.table(compare.report.summary(rounds_of(compare, ours=[100])), {"go": built.reason, "java": ""})
    assert "Go client rocketmq-client-go 2.1.2 is left out: no go in PATH" in text
    assert "Java" not in text


def test_a_reason_does_not_show_addresses_and_paths(compare: Any) -> None:
    said = "could not get https://registry.example/x/y.jar (see /home/somebody/.m2/settings.xml), 3/4 done"
    assert compare.peers.without_places(said) == "could not get ADDRESS (see PATH), 3/4 done"


def judged(compare: Any, rounds: list[dict[str, Any]], *peers: str, mode: str = "depth-64") -> dict[str, bool]:
    found = compare.criteria.judge(rounds, [mode], peers)
    assert len(compare.criteria.sentences(found)) == len(found)
    return {each["wanted"]: each["met"] for each in found}


def test_criteria_that_are_met_and_missed(compare: Any) -> None:
    rounds = rounds_of(compare, ours=[100, 120, 10], java=[50, 50, 50], node=[80, 90, 70])
    for each in rounds:
        each["ours:depth-64"].client_us, each["ours:depth-64"].p99_us = 3.0, 999.0
    found = judged(compare, rounds, "java", "node")
    assert found["messages/s of depth-64 at least x 2 of Java send, 64 threads"] is True
    best = "messages/s of depth-64 at least x 1.5 of the best of Java send, 64 threads, Node await send, 64 in flight"
    assert found[best] is False
    assert found["client CPU of depth-64 at most x 0.333 of Java send, 64 threads"] is True
    assert found["p99 of depth-64 below x 1 of Java send, 64 threads"] is True
    assert found["nothing acknowledged to depth-64 is lost"] is True
    rounds[1]["ours:depth-64"].stored = 999
    for each in rounds:
        each["ours:depth-64"].p99_us = 1000.0
    found = judged(compare, rounds, "java", "node")
    assert found["p99 of depth-64 below x 1 of Java send, 64 threads"] is False
    assert found["nothing acknowledged to depth-64 is lost"] is False


def test_what_was_wanted_and_has_no_figures_is_missed_and_what_was_not_is_passed_over(compare: Any) -> None:
    rounds = rounds_of(compare, ours=[100])
    assert judged(compare, rounds) == {"nothing acknowledged to depth-64 is lost": True}
    found = compare.criteria.judge(rounds, ["depth-64"], ["java"])
    missed = [each for each in compare.criteria.sentences(found) if each.startswith("MISSED")]
    assert len(missed) == 5
    assert all(each.endswith("there are no figures") for each in missed)


def test_automatic_batching_is_judged_by_what_is_visible(compare: Any) -> None:
    theirs = made(compare, "java:autobatch-1024", 500.0, visible_rate=100.0)
    rounds = [{"ours:adaptive-1024": made(compare, "ours:adaptive-1024", 90.0), "java:autobatch-1024": theirs}]
    found = judged(compare, rounds, "java", mode="adaptive-1024")
    assert list(found.values()) == [True, True]
    theirs.visible_rate = 120.0
    assert list(judged(compare, rounds, "java", mode="adaptive-1024").values()) == [False, True]


# -- ours alone, to the end


@pytest.mark.deep
async def test_a_small_run_of_ours_prints_tables_and_writes_figures(tmp_path: Path) -> None:
    bounds = ("--rounds", "2", "--seconds", "0.2", "--warm-up", "0.05", "--max-gb", "0.02", "--peers", "none", "--check")
    async with EmbeddedRocketMQ() as server:
        place = ("--namesrv", server.namesrv, "--broker-pid", str(os.getpid()))
        code, out, error = await run(
            "compare.py", *place, *bounds, "--modes", "depth-64,batch-1", "--json", str(tmp_path / "figures.json")
        )
    assert code == 0, error
    assert "64 in flight" in out
    assert "ours: batches of 32, one at a time" in out
    document = json.loads((tmp_path / "figures.json").read_bytes())
    assert len(document["runs"]) == 4
    for each in document["runs"]:
        assert each["stored"] == each["total"] >= each["messages"] > 0
        assert each["broker_us"] >= 0  # of a processor's time in ticks of 10 ms, of which a run of 0.2 s may see none
    assert {each["met"] for each in document["criteria"]} == {True}
    assert str(tmp_path) not in json.dumps(document)
    assert "met: nothing acknowledged to batch-1 is lost: 0 lost" in out


async def test_where_every_send_fails_nothing_is_measured_and_that_is_reported() -> None:
    bounds = (
        "--rounds",
        "1",
        "--seconds",
        "0.1",
        "--warm-up",
        "0",
        "--max-gb",
        "0.02",
        "--peers",
        "none",
        "--modes",
        "depth-1",
    )
    async with EmbeddedRocketMQ() as server:
        for request in (310, 320):
            server.fail_next(13, 1_000_000, request=request)  # MESSAGE_ILLEGAL: not retried
        code, out, error = await run("compare.py", "--namesrv", server.namesrv, *bounds)
    assert (code, out) == (2, "")
    assert "compare.py: no run has figures" in error
    assert "nothing was acknowledged in the window" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("check", "more", "code", "said"),
    [
        ((), {}, 0, ""),
        (("--check",), {}, 1, "MISSED: messages/s of depth-64 at least x 2 of Java send, 64 threads: x 1.50 (1.50 - 1.50)"),
        ((), {"failures": {"SendTimeoutError: late": 3}}, 1, "depth-64, round 1: failed: 3 x SendTimeoutError: late"),
        ((), {"stored": 990}, 1, "depth-64, round 1: 1,000 acknowledged, 990 stored"),
    ],
)
def test_exit_codes(
    compare: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    check: tuple[str, ...],
    more: dict[str, Any],
    code: int,
    said: str,
) -> None:
    """Losses and failures of a peer change nothing."""
    ours = made(compare, "ours:depth-64", 75.0, **more)
    theirs = made(compare, "java:sync-64", 50.0, stored=10, failures={"late": 1})
    runs = {"ours:depth-64": ours, "java:sync-64": theirs}
    course = SimpleNamespace(heat=lambda: None, round=lambda number: runs, builds={"java": compare.peers.Built(["java"])})
    monkeypatch.setattr(compare.main, "course", lambda options: nullcontext(course))
    given = ["--peers", "java", "--modes", "depth-64", "--rounds", "1", "--json", str(tmp_path / "figures.json"), *check]
    assert compare.main.main(given) == code
    assert said in capsys.readouterr().err
    assert (tmp_path / "figures.json").exists()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({}, ""),
        ({"tags": "other"}, "tags are 'other'"),
        ({"keys": ("k", "l")}, "keys are ('k', 'l')"),
        ({"user_properties": {}}, "properties are {}"),
        ({"body": b"y"}, "body are b'y'"),
    ],
)
def test_fault_of_a_stored_message_names_what_differs(compare: Any, changed: dict[str, Any], fault: str) -> None:
    production = compare.production
    wanted = production.ATTRIBUTES
    stored = {"tags": wanted.tags, "keys": (wanted.keys,), "user_properties": wanted.properties, "body": b"x" * production.BODY}
    found = production.fault_of(SimpleNamespace(**(stored | changed)))
    assert found.startswith(fault)
    assert bool(found) is bool(fault)
