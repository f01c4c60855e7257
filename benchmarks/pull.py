"""How fast a topic of eight queues is read, beside the least that can read it and other clients: ``python benchmarks/pull.py``.

The topic is filled once; then each side reads all of it, from the first message to the last, in turns, one process per run, the
order changing each round. Before the measured reading each process reads the topic once for nothing, so that a JVM has compiled
what it needs, and broker and page cache are in the same state for all. Sides:

  read         PullConsumer.read over all queues
  pull         PullConsumer.pull, a coroutine for each queue
  floor        bare_pull.py: the least that pulls and looks at body and queue offset of each record
  before       with --before DIR: PullConsumer.read of the client in another checkout
  java-lite    Java's DefaultLitePullConsumer 5.5.0, all queues assigned, pull batch size 32, eight pull threads
  java-pull    Java's DefaultMQPullConsumer 5.5.0, a thread for each queue, 32 messages a pull
  messense     rocketmq 0.4.4 of PyPI (librocketmq by ctypes): one queue after the other, which is all it can do

What counts are ratios within a round and their medians; absolute figures belong to the machine. A stock broker gives 32 messages a
pull. A peer that cannot be built (no Maven, no pip, no wheel for this machine) is named with its reason and left out.

Exit codes: 0; 1 when a side of ours did not read exactly what is stored, or, with --check, when read is not ahead of every peer; 2
when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from bare_loop import BareError, BareProducer
from send import QUEUES, BenchmarkError, Target, check_disk, create_topic, stored_messages, target

HERE: Final = Path(__file__).resolve().parent
JAVA: Final = HERE / "peers" / "java_pull"
MESSENSE: Final = HERE / "peers" / "messense_pull"
OURS: Final = ("read", "pull")
PEERS: Final = ("java-lite", "java-pull", "messense")
BATCH: Final = 32
SENDERS: Final = 8
RUN_LIMIT: Final = 120.0
BUILD_LIMIT: Final = 600.0


class Side(NamedTuple):
    """``command``: the program and its arguments before NAMESRV. ``environment``: beside that of this process."""

    command: list[str]
    environment: Mapping[str, str]


class Reading(msgspec.Struct, kw_only=True):
    """One run as its process prints it; ``side`` and ``round`` are added here."""

    messages: int
    bytes: int
    seconds: float
    client_seconds: float
    broker_seconds: float | None
    rss_mb: float
    side: str = ""
    round: int = 0

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def client_us(self) -> float:
        return self.client_seconds / max(self.messages, 1) * 1e6

    @property
    def broker_us(self) -> float | None:
        return None if self.broker_seconds is None else self.broker_seconds / max(self.messages, 1) * 1e6


R = TypeVar("R", bound=Reading)


def option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pull.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000, help="messages in the topic (default: 200000)")
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side reads (default: 5)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"of {', '.join(PEERS)}; none for none (default: all)")
    parser.add_argument("--warm-ups", type=int, default=1, help="readings before the measured one (default: 1)")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop of ours and the floor")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help="with --namesrv: the broker's process, for its CPU")
    parser.add_argument("--topic", default="BenchmarkPull", help=f"created with {QUEUES} queues (default: BenchmarkPull)")
    parser.add_argument("--before", metavar="DIR", help="a checkout whose client reads too, as the side before")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--check", action="store_true", help="exit 1 unless read is ahead of every peer")
    return parser


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = option_parser()
    options = parser.parse_args(given)
    options.peers = [] if options.peers == "none" else [name.strip() for name in options.peers.split(",") if name.strip()]
    unknown = [name for name in options.peers if name not in PEERS]
    if unknown:
        parser.error(f"--peers: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if options.messages < QUEUES * BATCH or options.body < 1 or options.rounds < 1 or options.warm_ups < 0:
        parser.error(f"--messages must be at least {QUEUES * BATCH}, --body and --rounds above 0, --warm-ups not below")
    if options.before and not (Path(options.before) / "rmq_async").is_dir():
        parser.error(f"--before: {options.before} holds no rmq_async")
    return options


async def fill(namesrv: str, topic: str, messages: int, body: int) -> int:
    """Makes the topic hold at least ``messages``; how many it holds then. What it held before stays."""
    await create_topic(namesrv, topic)
    held = await stored_messages(namesrv, topic)
    wanted = -(-max(messages - held, 0) // BATCH)
    if wanted:
        producer = BareProducer(topic)
        await producer.start(namesrv)
        bodies = [b"x" * body] * BATCH

        async def some(batches: int) -> None:
            for _ in range(batches):
                await producer.send_batch(bodies)

        await asyncio.gather(*[some(wanted // SENDERS + (number < wanted % SENDERS)) for number in range(SENDERS)])
        await producer.stop()
        held = await stored_messages(namesrv, topic, held + wanted * BATCH)
    return held


# -- the sides


def sides(options: argparse.Namespace) -> tuple[dict[str, Side], dict[str, str]]:
    """What takes part, and the peers that cannot, with the reason."""

    def python(side: str, **environment: str) -> Side:
        return Side([sys.executable, str(HERE / "one_read.py"), side, options.loop], environment)

    found = {name: python(name) for name in (*OURS, "floor")}
    if options.before:
        place = Path(options.before).resolve()
        found["before"] = python("read", PYTHONPATH=os.pathsep.join((str(place), str(place / "protocol"))))
    missing = {}
    for name in options.peers:
        print(f"building {name}", file=sys.stderr, flush=True)
        try:
            found[name] = BUILDERS[name](name)
        except BenchmarkError as error:
            missing[name] = str(error)
    return found, missing


def build_java(name: str) -> Side:
    return Side([*java_program("Pull"), name.removeprefix("java-")], {})


def java_program(name: str) -> list[str]:
    """Builds the programs with the official client; returns the command that starts the one of this name."""
    listed = JAVA / "build" / "classpath.txt"
    goals = ("-q", "-B", "compile", "dependency:build-classpath", f"-Dmdep.outputFile={listed}")
    must_run([os.environ.get("MAVEN", "mvn"), *goals], JAVA)
    classpath = os.pathsep.join((str(JAVA / "build" / "classes"), listed.read_text().strip()))
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    return [java, "-Drocketmq.client.logUseSlf4j=true", "-cp", classpath, name]


def build_messense(name: str) -> Side:
    place = MESSENSE / "build"
    python = place / "bin" / "python"
    if not python.exists():
        try:
            venv.create(place, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchmarkError(f"no environment of its own: {error}") from error
    must_run([str(python), "-m", "pip", "install", "-q", "-r", str(MESSENSE / "requirements.txt")], MESSENSE)
    must_run([str(python), "-c", "import rocketmq.client"], MESSENSE)
    return Side([str(python), str(MESSENSE / "pull.py")], {"PYTHONPATH": ""})


BUILDERS: Final = {"java-lite": build_java, "java-pull": build_java, "messense": build_messense}


def must_run(command: list[str], directory: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=BUILD_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(str(error)) from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise BenchmarkError(next((line for line in said if "ERROR" in line.upper()), said[-1])[:300])


def run_once(name: str, side: Side, place: Target, options: argparse.Namespace, stored: int) -> Reading:
    arguments = [place.namesrv, options.topic, str(stored), str(options.warm_ups), str(place.broker_pid or 0)]
    environment = {**os.environ, **side.environment}
    try:
        done = subprocess.run(
            [*side.command, *arguments], env=environment, capture_output=True, text=True, timeout=RUN_LIMIT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{name}: no result after {RUN_LIMIT:.0f} s") from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise BenchmarkError(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    reading = msgspec.json.decode(lines[-1], type=Reading)
    reading.side = name
    return reading


def all_rounds(found: dict[str, Side], place: Target, options: argparse.Namespace, stored: int) -> list[dict[str, Reading]]:
    """A peer that fails is a failure of the whole benchmark, as a figure left out would flatter somebody."""
    rounds: list[dict[str, Reading]] = []
    names = list(found)
    for number in range(options.rounds):
        turned = names[number % len(names) :] + names[: number % len(names)]
        runs = {}
        for name in turned:
            if place.directory is not None:
                check_disk(place.directory)
            runs[name] = run_once(name, found[name], place, options, stored)
            runs[name].round = number + 1
        rounds.append({name: runs[name] for name in names})
        figures = ", ".join(f"{name} {runs[name].rate:,.0f}/s {runs[name].client_us:.2f} us" for name in names)
        print(f"round {number + 1}/{options.rounds}: {figures}", file=sys.stderr, flush=True)
    return rounds


# -- what comes out


def ratios(rounds: Sequence[Mapping[str, R]], one: str, other: str, of: Callable[[R], float]) -> dict[str, Any]:
    each = [of(runs[one]) / of(runs[other]) for runs in rounds]
    return {"median": median(each), "min": min(each), "max": max(each), "rounds": each}


def document(
    options: argparse.Namespace, rounds: list[dict[str, Reading]], missing: dict[str, str], stored: int
) -> dict[str, Any]:
    names = list(rounds[0])
    result: dict[str, Any] = {
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            **{package: version(package) for package in ("uvloop", "msgspec")},
        },
        "settings": {name: getattr(options, name) for name in ("messages", "body", "rounds", "loop", "topic", "warm_ups")},
        "stored": stored,
        "missing": missing,
        "sides": {},
        "runs": [msgspec.to_builtins(runs[name]) for runs in rounds for name in names],
    }
    for name in names:
        runs = [each[name] for each in rounds]
        known = [run.broker_us for run in runs if run.broker_us is not None]
        result["sides"][name] = {
            "rate": median(run.rate for run in runs),
            "client_us": median(run.client_us for run in runs),
            "broker_us": median(known) if known else None,
            "rss_mb": median(run.rss_mb for run in runs),
            "read": [run.messages for run in runs],
            "rate_ratio": {ours: ratios(rounds, ours, name, lambda run: run.rate) for ours in OURS},
            "client_cpu_ratio": {ours: ratios(rounds, ours, name, lambda run: run.client_us) for ours in OURS},
        }
    return result


def table(result: dict[str, Any]) -> str:
    """Figures are medians; the ratios are of read, and of pull, to the side of the line: median (lowest - highest round)."""
    stored = result["stored"]
    heads = ("", "msg/s", "client us", "broker us", "RSS MB", "read", "read / it, rate", "read / it, CPU", "pull / it, rate")
    lines = [heads]
    for name, side in result["sides"].items():
        counts = sorted(set(side["read"]))
        lines.append(
            (
                name,
                f"{side['rate']:,.0f}",
                f"{side['client_us']:.2f}",
                "-" if side["broker_us"] is None else f"{side['broker_us']:.2f}",
                f"{side['rss_mb']:.0f}",
                "all" if counts == [stored] else " ".join(f"{count:,}" for count in counts),
                spread(side["rate_ratio"]["read"]),
                spread(side["client_cpu_ratio"]["read"]),
                spread(side["rate_ratio"]["pull"]),
            )
        )
    text = [f"{stored:,} messages stored", *rows(lines)]
    text += [f"{name} is left out: {reason}" for name, reason in result["missing"].items()]
    return "\n".join(text)


def rows(lines: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines with cells of equal width in each column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [_line(line, widths) for line in lines]


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    cells = [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
    return "  ".join(cells)


def spread(ratio: dict[str, Any]) -> str:
    return f"x {ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})"


def problems(result: dict[str, Any], check: bool) -> list[str]:
    stored = result["stored"]
    found = [
        f"{name}: {count:,} messages read, {stored:,} stored"
        for name in OURS
        for count in result["sides"][name]["read"]
        if count != stored
    ]
    if check:
        for name in PEERS:
            side = result["sides"].get(name)
            if side is None:
                found.append(f"{name} was not measured")
            elif not side["rate_ratio"]["read"]["median"] > 1.0:
                found.append(f"read is at {side['rate_ratio']['read']['median']:.2f} of the rate of {name}")
    return found


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    found, missing = sides(options)
    try:
        with target(options) as place:
            stored = asyncio.run(fill(place.namesrv, options.topic, options.messages, options.body))
            for name in ("floor", "read"):  # a JVM that has just started is slow: the broker's is warmed up with discarded runs
                run_once(name, found[name], place, options, stored)
            rounds = all_rounds(found, place, options, stored)
    except (BenchmarkError, BareError, OSError) as error:
        print(f"pull.py: {error}", file=sys.stderr)
        return 2
    result = document(options, rounds, missing, stored)
    if options.json == "-":
        print(json.dumps(result, indent=2))
    else:
        print(table(result))
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    wrong = problems(result, options.check)
    for problem in wrong:
        print(f"pull.py: {problem}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
