"""What our client adds to the delay of one confirmed message: ``python benchmarks/latency.py``.

Three sides take turns on one broker, one process and one message in flight each: a blocking socket with a prebuilt frame, the bare
asyncio loop, and ``await producer.send(Message(topic, body))``, with and without batching. What counts is the difference of their
medians (p50) within a round, and its median over the rounds: on shared cores a wake-up takes 20 or 50 us, whichever way the
machine has it at the time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from bare_loop import BareError
from runs import RunResult, RunSpec
from send import BenchmarkError, check_disk, create_topic, run_once, target

SIDES: Final = {
    "blocking": ("blocking", "depth-1", "blocking socket, prebuilt frame"),
    "bare": ("bare", "depth-1", "bare asyncio loop"),
    "ours": ("ours", "depth-1", "await producer.send"),
    "batching": ("ours", "adaptive-1", "await producer.send, batching=True"),
}
LIMIT_US: Final = 15.0
"""Our median less the blocking socket's, at most."""
MOST_MESSAGES: Final = 200_000


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="latency.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="how often each side runs (default: 9)")
    parser.add_argument("--seconds", type=float, default=1.0, help="window of one run (default: 1)")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds before the window (default: 0.5)")
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop of the asyncio sides")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--topic", default="Latency", help="created with 8 queues (default: Latency)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--check", action="store_true", help=f"exit 1 when ours adds more than {LIMIT_US:g} us")
    options = parser.parse_args(given)
    if options.rounds < 1 or options.body < 1 or options.seconds <= 0 or options.warm_up < 0:
        parser.error("--rounds, --body and --seconds must be above 0, --warm-up not below")
    return options


def measured(options: argparse.Namespace) -> list[dict[str, RunResult]]:
    """One mapping per round, side -> run; each round begins with another side."""
    rounds: list[dict[str, RunResult]] = []
    with target(options) as place:
        asyncio.run(create_topic(place.namesrv, options.topic))
        names = list(SIDES)
        for number in range(-1, options.rounds):  # the first, which warms the broker up, does not count
            runs: dict[str, RunResult] = {}
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if place.directory is not None:
                    check_disk(place.directory)
                side, mode, _ = SIDES[name]
                runs[name] = run_once(
                    RunSpec(
                        side=side, mode=mode, namesrv=place.namesrv, topic=options.topic, body=options.body,
                        seconds=options.seconds, warm_up=options.warm_up, max_messages=MOST_MESSAGES, loop=options.loop,
                        broker_pid=place.broker_pid,
                    )
                )  # fmt: skip
            if number >= 0:
                rounds.append(runs)
                shown = ", ".join(f"{name} {runs[name].p50_us:.0f}" for name in SIDES)
                print(f"round {number + 1}/{options.rounds}, p50 us: {shown}", file=sys.stderr, flush=True)
    return rounds


def summary(rounds: Sequence[dict[str, RunResult]]) -> dict[str, Any]:
    """Per side: medians over the rounds, and what it adds to the blocking socket's p50, in microseconds."""
    result: dict[str, Any] = {}
    for name in SIDES:
        runs = [each[name] for each in rounds]
        added = [(each[name].p50_us or 0.0) - (each["blocking"].p50_us or 0.0) for each in rounds]
        result[name] = {
            "p50_us": median(run.p50_us or 0.0 for run in runs),
            "p99_us": median(run.p99_us or 0.0 for run in runs),
            "client_us": median(run.client_us for run in runs),
            "added_us": {"median": median(added), "min": min(added), "max": max(added), "rounds": added},
            "acknowledged": sum(run.total for run in runs),
            "stored": sum(run.stored or 0 for run in runs),
            "failures": sum(sum(run.failures.values()) for run in runs),
        }
    return result


def table(figures: dict[str, Any]) -> str:
    lines = ["| side | p50 us | p99 us | client CPU us | adds to p50, us (rounds) |", "|---|---|---|---|---|"]
    for name, (_, _, title) in SIDES.items():
        each = figures[name]
        added = each["added_us"]
        shown = "" if name == "blocking" else f"{added['median']:+.1f} ({added['min']:+.1f} to {added['max']:+.1f})"
        lines.append(f"| {title} | {each['p50_us']:.1f} | {each['p99_us']:.1f} | {each['client_us']:.1f} | {shown} |")
    return "\n".join(lines)


def problems(figures: dict[str, Any], *, check: bool) -> list[str]:
    found = [
        f"{name}: {each['failures']} failed, {each['acknowledged']:,} acknowledged, {each['stored']:,} stored"
        for name, each in figures.items()
        if each["failures"] or each["stored"] < each["acknowledged"]
    ]
    added = figures["ours"]["added_us"]["median"]
    if check and not added <= LIMIT_US:
        found.append(f"ours adds {added:.1f} us, the limit is {LIMIT_US:g}")
    return found


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    try:
        rounds = measured(options)
    except (BenchmarkError, BareError, OSError) as error:
        print(f"latency.py: {error}", file=sys.stderr)
        return 2
    figures = summary(rounds)
    if options.json == "-":
        print(msgspec.json.format(msgspec.json.encode(figures)).decode())
    else:
        print(table(figures))
        if options.json:
            Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(figures)))
    found = problems(figures, check=options.check)
    for problem in found:
        print(f"latency.py: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
