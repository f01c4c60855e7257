"""``rmq simulate``: seeds that repeat themselves, what the summary says, and the line that repeats a violation."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import pytest

from rmq_async import Message, Producer, RocketMQError
from rmq_async.cli.app import run_command
from rmq_async.testing.simulation import SCENARIOS, Faults, Simulation, campaign
from rmq_async.testing.simulation.scenarios import Scenario

from .support import START, Ended, group_of, left_after_kill, members, one_line, rmq

Simulate = Callable[..., Ended]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Runs the command in this process, in which no other loop runs."""
    monkeypatch.setenv("COLUMNS", "120")

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


async def test_seeds_run_in_two_processes() -> None:
    ended = await rmq("simulate", "--scenario", "administration", "--seeds", "4", "--first", "10", "--jobs", "2", "--json")
    assert ended.code == 0
    (record,) = ended.records
    assert record["seeds"] == 4
    assert "trace_hash" not in record


def test_seeds_run_for_a_time(simulate: Simulate) -> None:
    began = time.monotonic()
    (record,) = simulate("--scenario", "administration", "--for", "0.2s", "--json").records
    assert time.monotonic() - began >= 0.2
    assert record["seeds"] >= 1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--scenario", "none"], "'none' is not one of 'mixed', "),
        (["--seed", "1", "--seeds", "2"], "--seed runs one seed; leave out --seeds, --for and --first"),
        (["--seed", "1", "--for", "1s"], "--seed runs one seed"),
        (["--trace"], "--trace prints the frames of one run; name it with --seed"),
        (["--seed", "-1"], "-1 is not in the range x>=0"),
        (["--seeds", "0"], "0 is not in the range"),
        (["--for", "10"], "'10' is no duration; write a number and s, m or h, such as 90s or 10m"),
        (["--for", "0s"], "'0s' is no positive duration of less than 1e9 s"),
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
    monkeypatch.setattr(campaign, "SCENARIOS", {**SCENARIOS, "plain": Fragile("a fragile shop", ())})
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


def test_processes_end_with_a_parent_that_is_killed() -> None:
    command = [*START, "simulate", "--jobs", "2", "--for", "600s", "--scenario", "mixed"]
    with group_of(command, stdout=subprocess.DEVNULL) as process:
        deadline = monotonic() + 60
        while len(members(process.pid)) < 4 and monotonic() < deadline:  # a process of multiprocessing is among them
            sleep(0.05)
        sleep(1.0)  # real time: they begin their work, which is seen nowhere outside of them
        assert left_after_kill(process, 60.0) == []
