"""``rmq simulate``: seeds that repeat themselves, functions of users, the summary, and the line that repeats a violation."""

from __future__ import annotations

import asyncio
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from rmq_async import Message, Producer, RocketMQError
from rmq_async.cli.app import run_command
from rmq_async.testing.simulation import Faults, Simulation

from ..simulation import SCENARIOS, scenarios
from ..simulation.scenarios import Scenario
from .support import START, Ended, group_of, left_after_kill, members, one_line, rmq

Simulate = Callable[..., Ended]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Runs the command in this process, in which no other loop runs."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str) -> Ended:
        capsys.readouterr()
        code = run_command(("simulate", *arguments))
        output = capsys.readouterr()
        return Ended(code, output.out, output.err)

    return run


def test_a_seed_repeats_itself(simulate: Simulate) -> None:
    first, again, other = (simulate("--scenario", "plain", "--seed", seed, "--json") for seed in ("5", "5", "6"))
    assert [ended.code for ended in (first, again, other)] == [0, 0, 0]
    (record,), (repeated,), (different,) = first.records, again.records, other.records
    assert record.pop("seeds_per_minute") > 0
    assert repeated.pop("seeds_per_minute") < 60_000
    assert record == repeated
    assert record["trace_hash"] != different["trace_hash"]
    assert (record["seeds"], record["virtual_hours"]) == (1, pytest.approx(400 / 3600, rel=0.1))
    assert record["operations"] > 20
    assert record["faults_met"]
    assert not record["faults_met"].keys() & set(record["faults_unmet"])


def test_a_summary_for_people_has_a_line_for_each_number(simulate: Simulate) -> None:
    ended = simulate("--scenario", "administration", "--seed", "5")
    names = [line.partition(": ")[0] for line in ended.out.splitlines()]
    assert (ended.code, ended.err) == (0, "")
    assert names == [
        "seeds",
        "seeds per minute",
        "virtual hours",
        "operations",
        "faults met",
        "faults unmet",
        "trace hash",
    ]


def test_kinds_that_no_seed_has_met_are_named(simulate: Simulate) -> None:
    (record,) = simulate("--scenario", "administration", "--first", "5", "--seeds", "3", "--json").records
    drawn = {kind for seed in (5, 6, 7) for kind in Simulation(seed, faults=Faults.swarm()).faults.kinds}
    assert record["seeds"] == 3
    assert sorted([*record["faults_met"], *record["faults_unmet"]]) == sorted(drawn)


def test_a_kind_of_fault_is_left_out(simulate: Simulate) -> None:
    drawn = set(Simulation(5, faults=Faults.swarm()).faults.kinds)
    kept = sorted(drawn)[0]
    without = [option for kind in sorted(drawn - {kept}) for option in ("--without", kind)]
    (record,) = simulate("--scenario", "plain", "--seed", "5", "--json", *without).records
    assert {*record["faults_met"], *record["faults_unmet"]} <= {kept}


def test_a_trace_has_a_line_for_each_frame(simulate: Simulate) -> None:
    *lines, _ = simulate("--scenario", "administration", "--seed", "1", "--trace", "--json").out.splitlines()
    assert len(lines) > 20
    assert all("->" in line for line in lines)


def test_seeds_run_for_a_time(simulate: Simulate) -> None:
    began = time.monotonic()
    (record,) = simulate("--scenario", "administration", "--for", "0.2s", "--json").records
    assert time.monotonic() - began >= 0.2
    assert record["seeds"] >= 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "name the function to run, MODULE:FUNCTION, such as shop:service"),
        (["--scenario", "none"], "there is no scenario 'none'; there are mixed, "),
        (["--scenario", "plain", "shop:service"], "give MODULE:FUNCTION or --scenario, not both"),
        (["shop:service", "--seed", "1", "--seeds", "2"], "--seed runs one seed; leave out --seeds, --for and --first"),
        (["shop:service", "--seed", "1", "--for", "1s"], "--seed runs one seed"),
        (["shop:service", "--trace"], "--trace prints the frames of one run; name it with --seed"),
        (["--seed", "-1"], "-1 is not in the range x>=0"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--for", "10"], "'10' is not a duration; write a number and s, m or h, such as 90s or 10m"),
        (["--for", "0s"], "'0s' is not a positive duration below 1e9 s"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--without", "fire"], "'fire' is not one of 'broker-busy', "),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(simulate: Simulate, options: list[str], text: str) -> None:
    ended = simulate(*options)
    assert (ended.code, ended.out) == (2, "")
    assert text in one_line(ended.err)


class Fragile(Scenario):
    """A shop that must not see a broker pause. Other faults do it no harm."""

    async def play(self, simulation: Any) -> None:
        async with Producer("shop", namesrv=simulation.namesrv) as producer:
            while simulation.now < self.duration:
                with suppress(RocketMQError):
                    await producer.send(Message("Shop", b"%d" % simulation.number()))
                await asyncio.sleep(5.0)
        paused = {event.machine for event in simulation.history if event.what == "pause"}
        for broker in sorted(name for name in paused if name.startswith("broker-")):
            simulation.violation(f"the shop saw {broker} pause")


def test_a_violation_is_printed_with_the_line_that_repeats_it(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "SCENARIOS", {**SCENARIOS, "plain": Fragile("a fragile shop", ())})
    ended = simulate("--scenario", "plain", "--first", "1", "--seeds", "30", "--json")
    assert ended.code == 1
    (record,) = ended.records
    assert "the shop saw broker-" in record["violation"]
    assert "trace_hash" not in record

    command, *options = record["repeat"].split()[1:]
    seed, left_out = options[3], options[5::2]
    assert (command, options[:3]) == ("simulate", ["--scenario", "plain", "--seed"])
    drawn = Simulation(int(seed), faults=Faults.swarm()).faults.kinds
    assert "broker-pause" in drawn
    assert set(left_out) == drawn - {"broker-pause"}
    assert set(options[4::2]) == {"--without"}

    repeated = simulate(*options)
    assert repeated.code == 1
    assert record["violation"].splitlines()[1] in repeated.out
    assert f"repeat: {record['repeat']}\n" in repeated.out  # nothing more can be left out


SHOP = """
import asyncio
from rmq_async import Message, Producer, RocketMQError

def plain(sim): ...

async def two(sim, more): ...

async def calm(sim):
    await sim.calm(10)
    async with Producer("shop", namesrv=sim.namesrv) as producer:
        await producer.send(Message("Shop", b"1"))

async def fragile(sim):
    while sim.now < 300:
        await asyncio.sleep(1)
    assert "pause" not in {event.what for event in sim.history if event.machine == "broker-a"}, "broker-a was paused"

async def violating(sim):
    sim.violation("order 17 was shipped twice")

async def other(sim):
    async def fail():
        raise KeyError("shipped")
    await sim.machine("shipping").run(fail)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module ``simulated_shop`` in the current directory."""
    path = tmp_path / "simulated_shop.py"
    path.write_text(SHOP)
    (tmp_path / "broken_shop.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    yield path
    sys.modules.pop("simulated_shop", None)


@pytest.mark.usefixtures("shop")
def test_function_runs_for_each_seed(simulate: Simulate) -> None:
    (record,) = simulate("simulated_shop:calm", "--first", "1", "--seeds", "3", "--json").records
    assert (record["seeds"], record["operations"]) == (3, 3)
    (one,) = simulate("simulated_shop:calm", "--seed", "1", "--json").records
    (again,) = simulate("simulated_shop:calm", "--seed", "1", "--json").records
    assert one["trace_hash"] == again["trace_hash"]


def test_error_of_a_function_is_printed_with_its_seed_and_the_fewest_kinds_of_faults(simulate: Simulate, shop: Path) -> None:
    ended = simulate("simulated_shop:fragile", "--first", "1", "--seeds", "50", "--json")
    (record,) = ended.records
    assert ended.code == 1
    first, second, *frames = record["violation"].splitlines()
    assert first == "AssertionError: broker-a was paused"
    assert second.startswith(f"seed {record['repeat'].split()[4]}, 300")
    assert str(shop) in frames[0]

    command, *options = record["repeat"].split()[1:]
    seed, left_out = options[2], options[4::2]
    assert (command, options[:2]) == ("simulate", ["simulated_shop:fragile", "--seed"])
    assert {*Simulation(int(seed), faults=Faults.swarm()).faults.kinds} == {*left_out, "broker-pause"}
    assert simulate(*options).code == 1


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("violating", ["seed 1: 1 violations", "order 17 was shipped twice (main, "]),
        ("other", ["seed 1: shipping failed at ", "KeyError('shipped')", ", in fail"]),
    ],
)
def test_violation_of_a_function_and_error_of_another_machine_are_failures(
    simulate: Simulate, name: str, texts: list[str]
) -> None:
    ended = simulate(f"simulated_shop:{name}", "--seed", "1")
    assert ended.code == 1
    assert all(text in ended.out for text in texts)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("simulated_shop", "'simulated_shop' is not MODULE:FUNCTION, such as shop:service for the function service in shop.py"),
        ("simulated_shop.py:calm", "is not MODULE:FUNCTION"),
        ("no_such_shop:calm", "module 'no_such_shop' is neither in "),
        ("no_such.shop:calm", "module 'no_such' is neither in "),
        ("broken_shop:calm", "module 'broken_shop' cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("simulated_shop:none", "has no 'none'; its coroutine functions are two, calm, fragile, violating, other"),
        ("simulated_shop:plain", "simulated_shop:plain is not a coroutine function; write async def plain(sim)"),
        ("simulated_shop:two", "simulated_shop:two must take one argument, the simulation: async def two(sim)"),
    ],
)
def test_wrong_function_is_one_line_and_exit_code_2(simulate: Simulate, target: str, text: str) -> None:
    ended = simulate(target, "--seed", "1")
    assert (ended.code, ended.out) == (2, "")
    assert text in one_line(ended.err)


async def test_seeds_run_in_two_processes_that_find_the_function_in_the_current_directory(shop: Path) -> None:
    given = ("--first", "10", "--seeds", "4", "--jobs", "2", "--json")
    ended = await rmq("simulate", "simulated_shop:calm", *given, cwd=shop.parent)
    (record,) = ended.records
    assert (ended.code, record["seeds"]) == (0, 4)
    assert "trace_hash" not in record


def test_scenarios_are_in_a_checkout_only(simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "tests.simulation", None)  # as if it were not there
    ended = simulate("--scenario", "plain")
    assert ended.code == 2
    assert f"{tmp_path} is not a checkout of rmq-async" in one_line(ended.err)


def test_example_for_the_command_passes(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "examples")
    assert simulate("simulated_service:service", "--seed", "1").code == 0
    del sys.modules["simulated_service"]


@pytest.mark.parametrize("named", [(), ("--scenario", "plain")])
def test_command_of_the_tests_runs_the_mixed_scenario(named: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another is named. What that run does: test_hashes."""
    given: list[tuple[str, ...]] = []
    monkeypatch.setattr("rmq_async.cli.main", given.append)
    monkeypatch.setattr(sys, "argv", ["tests.simulation", "--seed", "1", *named])
    runpy.run_module("tests.simulation", run_name="__main__")
    assert given == [("simulate", "--seed", "1", *named) if named else ("simulate", "--scenario", "mixed", "--seed", "1")]


def test_processes_end_with_a_parent_that_is_killed() -> None:
    command = [*START, "simulate", "--jobs", "2", "--for", "600s", "--scenario", "mixed"]
    with group_of(command, stdout=subprocess.DEVNULL) as process:
        deadline = monotonic() + 60
        while len(members(process.pid)) < 4 and monotonic() < deadline:  # a process of multiprocessing is among them
            sleep(0.05)
        sleep(1.0)  # real time: they begin their work, which is seen nowhere outside of them
        assert left_after_kill(process, 60.0) == []
