"""How much our sends cost, held against the least that can send: ``python benchmarks/send.py``.

Both sides take turns on the same broker and the same topic, one process per run, the order changing each round, so that what
the machine and the broker do meanwhile falls on both. What counts is the ratio within a round and its median over rounds;
absolute figures belong to the machine they were taken on. By default the official name server and broker are started (profile
*stock*, in a directory that is deleted afterwards); ``--namesrv`` uses a running one, whose first broker gets the topic.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.bare_loop import BareError
from support.clusters import (
    QUEUES,
    STORED_OVERHEAD,
    BenchmarkError,
    Target,
    check_disk,
    create_topic,
    stored_messages,
    target,
)
from support.one_run import BARE_METHODS
from support.runs import BATCH, MODES, RunResult, RunSpec
from support.send_report import over_limits, summary, table

DEFAULT_MODES: Final = ("depth-1", "depth-64", "batch-1", "batch-8", "adaptive-64", "adaptive-1024", "oneway")
SHARED: Final = [mode for mode, each in MODES.items() if each.kind in BARE_METHODS]
"""Modes that the bare loop has too."""
RUNNER: Path = Path(__file__).parent / "support" / "one_run.py"


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="send.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--modes", default=",".join(DEFAULT_MODES), help=f"of {', '.join(SHARED)} (default: {', '.join(DEFAULT_MODES)})"
    )
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--no-compression", action="store_true", help="ours compresses no body; the bare loop never does")
    parser.add_argument("--rounds", type=int, default=5, help="how often both sides run (default: 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="longest window of one run (default: 3)")
    parser.add_argument("--warm-up", type=float, default=1.0, help="seconds before the window (default: 1)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop of both sides")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help="with --namesrv: the broker's process, for its CPU")
    parser.add_argument("--topic", default="Benchmark", help=f"created with {QUEUES} queues (default: Benchmark)")
    parser.add_argument("--max-gb", type=float, default=3.0, help="what all runs together may write to the store (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a median is beyond the project's limits")
    parser.add_argument("--self-check", action="store_true", help="the bare loop on both sides: how far from 1.00 noise leads")
    options = parser.parse_args(given)
    options.modes = [mode.strip() for mode in options.modes.split(",") if mode.strip()]
    unknown = [mode for mode in options.modes if mode not in SHARED]
    if unknown or not options.modes:
        parser.error(f"--modes: {', '.join(unknown) or 'none given'}; there are {', '.join(SHARED)}")
    if options.rounds < 1 or options.body < 1 or options.seconds <= 0 or options.warm_up < 0 or options.max_gb <= 0:
        parser.error("--rounds, --body, --seconds and --max-gb must be above 0, --warm-up not below")
    return options


def run_once(spec: RunSpec) -> RunResult:
    """One run in a process of its own, then what the broker says of it."""
    before = asyncio.run(stored_messages(spec.namesrv, spec.topic))
    command = [sys.executable, str(RUNNER), msgspec.json.encode(spec).decode()]
    limit = spec.seconds + spec.warm_up + 60
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{spec.mode}, {spec.side}: no result after {limit:.0f} s") from error
    if done.returncode:
        raise BenchmarkError(f"{spec.mode}, {spec.side}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    if done.stderr:
        print(f"{spec.mode}, {spec.side}, on its standard error, at the end:\n{done.stderr[-2000:]}", file=sys.stderr)
    result = msgspec.json.decode(done.stdout.splitlines()[-1], type=RunResult)
    result.before = before
    result.stored = asyncio.run(stored_messages(spec.namesrv, spec.topic, before + result.total)) - before
    return result


def specification(options: argparse.Namespace, place: Target, side: str, mode: str) -> RunSpec:
    """The run's share of the bytes that all runs may write becomes its largest count."""
    weights = sum(MODES[each].weight for each in options.modes) * 2 * options.rounds
    share = options.max_gb * 1e9 * MODES[mode].weight / weights
    return RunSpec(
        side=side,
        mode=mode,
        namesrv=place.namesrv,
        topic=options.topic,
        body=options.body,
        seconds=options.seconds,
        warm_up=options.warm_up,
        max_messages=max(5 * BATCH, int(share / (options.body + STORED_OVERHEAD))),
        loop=options.loop,
        compress=not options.no_compression,
        broker_pid=place.broker_pid,
    )


def heat_broker(options: argparse.Namespace, place: Target) -> None:
    """A JVM that has just started is slow: one discarded run for single messages, one for batches, as they are among the modes.

    Each may write what one run of its mode may.
    """
    for mode in dict.fromkeys(("depth-64" if MODES[each].kind != "batch" else "batch-8") for each in options.modes):
        run_once(specification(options, place, "bare", mode))


def all_rounds(options: argparse.Namespace, place: Target, sides: tuple[str, str]) -> list[dict[str, dict[str, RunResult]]]:
    rounds: list[dict[str, dict[str, RunResult]]] = []
    for number in range(options.rounds):
        rounds.append({})
        for position, mode in enumerate(options.modes):
            runs: dict[str, RunResult] = {}
            order = sides if (number + position) % 2 == 0 else sides[::-1]
            for side in order:
                if place.directory is not None:
                    check_disk(place.directory)
                spec = specification(options, place, side.partition("#")[0], mode)
                runs[side] = run_once(spec)
            rounds[-1][mode] = runs
            _progress(f"round {number + 1}/{options.rounds}", mode, runs, sides)
    return rounds


def _progress(what: str, mode: str, runs: dict[str, RunResult], sides: tuple[str, str]) -> None:
    figures = ", ".join(f"{side} {runs[side].rate:,.0f}/s {runs[side].client_us:.2f} us" for side in sides)
    print(f"{what} {mode}: {figures}", file=sys.stderr, flush=True)


def void_runs(rounds: list[dict[str, dict[str, RunResult]]]) -> list[str]:
    """Runs whose figures mean little, and why: sends failed, or messages were acknowledged and not stored.

    One-way sends of the bare loop may be dropped by the broker, as nothing paces them; all else may not.
    """
    found = []
    for each in rounds:
        for mode, runs in each.items():
            for side, run in runs.items():
                if run.failures:
                    what = ", ".join(f"{number:,} x {text}" for text, number in run.failures.items())
                    found.append(f"{mode}, {side}: failed: {what}")
                droppable = mode == "oneway" and side.startswith("bare")
                if run.stored is not None and run.stored < run.total and not droppable:
                    found.append(f"{mode}, {side}: {run.total:,} acknowledged, {run.stored:,} stored")
    return found


def document(
    options: argparse.Namespace, rounds: list[dict[str, dict[str, RunResult]]], sides: tuple[str, str]
) -> dict[str, Any]:
    def installed(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    machine = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        **{package: installed(package) for package in ("uvloop", "msgspec", "rmq-async")},
    }
    names = ("modes", "body", "rounds", "seconds", "warm_up", "loop", "max_gb", "topic", "no_compression")
    return {
        "machine": machine,
        "settings": {name: getattr(options, name) for name in names} | {"queues": QUEUES, "batch": BATCH},
        "sides": sides,
        "modes": summary(rounds, sides),
        "runs": [
            {"round": number, **msgspec.to_builtins(run), "side": side}
            for number, each in enumerate(rounds, 1)
            for runs in each.values()
            for side, run in runs.items()
        ],
    }


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    sides = ("bare#2", "bare") if options.self_check else ("ours", "bare")
    try:
        with target(options) as place:
            asyncio.run(create_topic(place.namesrv, options.topic))
            heat_broker(options, place)
            rounds = all_rounds(options, place, sides)
    except (BenchmarkError, BareError, OSError) as error:
        print(f"send.py: {error}", file=sys.stderr)
        return 2
    result = document(options, rounds, sides)
    if options.json == "-":
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        print(table(result["modes"], sides))
        if options.json:
            Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    problems = void_runs(rounds) + (over_limits(result["modes"]) if options.check else [])
    for problem in problems:
        print(f"send.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
