"""How much the embedded broker serves: ``python benchmarks/embedded.py``.

``rmq server`` with its defaults and our client are a process each, so on two cores they share nothing but the machine. The
modes take turns, each run is a new client on the same server, and medians of the rounds are given. ``flood.py`` looks at
the server's bounds instead, with a client that does less.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from flood import Server, running_server
from runs import MODES as SEND_MODES
from runs import RunResult, RunSpec
from send import QUEUES, BenchmarkError, create_topic, run_once

TOPIC: Final = "Benchmark"
PULLS: Final = "pulls"
MODES: Final = {
    **{name: SEND_MODES[name].title for name in ("depth-64", "batch-8", "oneway")},
    PULLS: f"pulls of 32, {QUEUES} queues at a time",
}
_MEDIANS: Final = ("rate", "client_us", "broker_us", "p50_us", "p99_us", "client_cores", "broker_cores")
_PULL_CLIENT: Final = Path(__file__).with_name("one_pull.py")


def pull_once(spec: RunSpec) -> RunResult:
    command = [sys.executable, str(_PULL_CLIENT), msgspec.json.encode(spec).decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=spec.seconds + 60, check=False)
    if done.returncode or done.stderr:
        raise BenchmarkError(f"pulls: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=RunResult)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[RunResult]] = {mode: [] for mode in MODES}
    async with running_server(options.max_memory) as server:
        await create_topic(server.namesrv, TOPIC)
        for number in range(options.rounds):
            for mode, done in runs.items():
                once = pull_once if mode == PULLS else run_once
                done.append(await asyncio.to_thread(once, specification(options, server, mode)))
                print(f"round {number + 1}/{options.rounds} {mode}: {done[-1].rate:,.0f}/s", file=sys.stderr, flush=True)
        most = server.memory("VmHWM")
    settings = {name: getattr(options, name) for name in ("body", "rounds", "seconds", "max_memory", "loop")}
    return {
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
        "settings": settings | {"queues": QUEUES},
        "server_rss_mb": most,
        "modes": {mode: {name: _median(done, name) for name in _MEDIANS} for mode, done in runs.items()},
        "problems": [problem for mode, done in runs.items() for problem in _problems(mode, done)],
    }


def specification(options: argparse.Namespace, server: Server, mode: str) -> RunSpec:
    return RunSpec(
        side="ours",
        mode=mode,
        namesrv=server.namesrv,
        topic=TOPIC,
        body=options.body,
        seconds=options.seconds,
        warm_up=options.seconds / 4,
        max_messages=10**9,
        loop=options.loop,
        broker_pid=server.process.pid,
    )


def _median(runs: list[RunResult], name: str) -> float | None:
    known = [value for run in runs if (value := getattr(run, name)) is not None]
    return median(known) if known else None


def _problems(mode: str, runs: list[RunResult]) -> list[str]:
    found = [f"{mode}: {number:,} x {text}" for run in runs for text, number in run.failures.items()]
    lost = [run for run in runs if run.stored is not None and run.stored < run.total]
    return found + [f"{mode}: {run.total:,} sent, {run.stored:,} stored" for run in lost]


def table(result: dict[str, Any]) -> str:
    lines = [("", "msg/s", "client us", "server us", "p50 ms", "p99 ms", "client cores", "server cores")]
    for mode, title in MODES.items():
        figures = result["modes"][mode]
        shown = [(figures[name], form) for name, form in zip(_MEDIANS, (",.0f", ".2f", ".1f"), strict=False)]
        shown += [(None if figures[name] is None else figures[name] / 1000, ".2f") for name in ("p50_us", "p99_us")]
        shown += [(figures[name], ".2f") for name in ("client_cores", "broker_cores")]
        lines.append((title, *("-" if value is None else format(value, form) for value, form in shown)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines]
    return "\n".join([*text, f"most memory of the server: {result['server_rss_mb']:.0f} MiB"])


def parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="embedded.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each mode runs (default: 3)")
    parser.add_argument("--seconds", type=float, default=3.0, help="window of one run; a quarter more before it (default: 3)")
    parser.add_argument("--max-memory", type=int, default=256, help="MiB that the server may keep (default: 256)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop of the client")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    options = parser.parse_args(given)
    if options.rounds < 1 or options.body < 1 or options.seconds <= 0 or options.max_memory < 1:
        parser.error("--rounds, --body, --seconds and --max-memory must be above 0")
    return options


def main(given: list[str] | None = None) -> int:
    options = parse(given)
    try:
        result = asyncio.run(measure(options))
    except (BenchmarkError, OSError, subprocess.TimeoutExpired) as error:
        print(f"embedded.py: {error}", file=sys.stderr)
        return 2
    if options.json == "-":
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        print(table(result))
        if options.json:
            Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    for problem in result["problems"]:
        print(f"embedded.py: {problem}", file=sys.stderr)
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
