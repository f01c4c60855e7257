"""What a group consumer costs beside Java's push consumer: ``python benchmarks/consume.py``.

Sides take turns on one broker, one process per run, the order changing each round:

  ours      Consumer with its defaults and an empty coroutine handler
  before    with --before DIR: the same of another checkout
  java      DefaultMQPushConsumer 5.5.0 with 20 threads and an empty concurrent listener, otherwise its defaults

Parts:

  plain     a new group handles a topic of eight queues from its first message to its last; 128-byte bodies
  service   the same with messages as services send them: tags, a key and two properties; subscribed to by tags, and handlers look
            at all three
  pop       plain by members that pop: mode="pop", whose acknowledgements go out in batches, and Java's consumer with
            setClientRebalance(false) and the mode POP set at the broker for its group, which sends one for each message; from the
            first message to the broker's answer to the last acknowledgement
  latency   200 messages a second from another process; from just before send() to the first line of the handler

Each process of the first three parts handles the topic once with another group before what is measured, so that a JVM has
compiled what it needs; those of the last handle a topic of 20,000 messages first. Client CPU is user and system time of the whole
process. What counts are ratios within a round and their medians; of latencies the medians over the rounds. --check ends with 1
where client CPU is more than 2.0 x Java's (the aim is 1.0), the rate less than 0.8 x, p50 more than 1 ms above, or p99 more than
1.25 x Java's; of pop, where the rate is less than 3 x Java's.

A run begins when the broker has used less than a fifth of a core for half a second: what single acknowledgements leave to it would
count for the side whose turn is next.

Exit codes: 0; 1 when a message was not handled exactly once, or by --check; 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.bare_loop import BareError
from support.clusters import QUEUES, BenchmarkError, Target, check_disk, create_topic, stored_messages, target
from support.compare_production import ATTRIBUTES
from support.runs import BATCH, process_seconds
from support.sides import Side, check_checkout, environment_of, java_program

from rmq_async import Message, Producer

CLIENT: Final = str(Path(__file__).resolve().parent / "support" / "one_consume.py")
IDLE: Final = 0.2
"""Cores; a broker of 5.5.0 without work takes 0.06 to 0.1."""
LOOK: Final = 0.5
SETTLE_LIMIT: Final = 30.0
PARTS: Final = ("plain", "service", "pop", "latency")
AIM, LIMIT, LEAST_RATE, LEAST_POP_RATE = 1.0, 2.0, 0.8, 3.0
P50_ABOVE, P99_RATIO = 1.0, 1.25
BACKLOG: Final = 20_000
SENDERS: Final = 8
"""Coroutines that fill a topic."""
UNMEASURED: Final = 200
"""Messages of the latency part that are sent at its rate before those that count."""
RUN_LIMIT: Final = 180.0


class Consuming(msgspec.Struct, kw_only=True):
    """One run as its process prints it; ``side``, ``part`` and ``round`` are added here.

    ``acknowledged``: messages that the broker has taken as done, of the pop part. ``p50_ms``, ``p99_ms``: of the latency part.
    """

    messages: int
    bytes: int
    seconds: float
    client_seconds: float
    broker_seconds: float | None
    rss_mb: float
    side: str = ""
    part: str = ""
    round: int = 0
    acknowledged: int | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def rate(self) -> float:
        return self.messages / self.seconds

    @property
    def client_us(self) -> float:
        return self.client_seconds / max(self.messages, 1) * 1e6

    @property
    def broker_us(self) -> float | None:
        return None if self.broker_seconds is None else self.broker_seconds / max(self.messages, 1) * 1e6


Rounds = list[dict[str, Consuming]]


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="consume.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--messages", type=int, default=200_000, help="messages in a topic (default: 200000)")
    parser.add_argument("--body", type=int, default=128, help="bytes of each message's body (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each side runs (default: 5)")
    parser.add_argument("--warm-ups", type=int, default=1, help="groups before the measured one (default: 1)")
    parser.add_argument("--rate", type=float, default=200.0, help="messages a second of the latency part (default: 200)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run of the latency part (default: 10)")
    parser.add_argument("--no-java", action="store_true", help="without Java's push consumer")
    parser.add_argument("--before", metavar="DIR", type=Path, help="a checkout whose Consumer runs too, as the side before")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop", help="event loop of ours")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of one of our own")
    parser.add_argument("--broker-pid", type=int, help="with --namesrv: the broker's process, for its CPU")
    parser.add_argument("--topic", default="BenchmarkConsume", help="the topics' names begin so (default: BenchmarkConsume)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--check", action="store_true", help="exit 1 where a median is beyond the project's limits")
    options = parser.parse_args(given)
    options.parts = [part.strip() for part in options.parts.split(",") if part.strip()]
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown or not options.parts:
        parser.error(f"--parts: {', '.join(unknown) or 'none given'}; there are {', '.join(PARTS)}")
    if options.messages < QUEUES * BATCH or options.body < 8 or options.rounds < 1 or options.warm_ups < 0:
        parser.error(f"--messages must be at least {QUEUES * BATCH}, --body 8, --rounds 1, --warm-ups 0")
    if options.rate <= 0 or options.rate * options.seconds < 100:
        parser.error("--rate times --seconds must be at least 100 messages")
    if options.before is not None and not (options.before / "rmq_async").is_dir():
        parser.error(f"--before: {options.before} holds no rmq_async")
    return options


def sides(options: argparse.Namespace) -> dict[str, Side]:
    command = [sys.executable, CLIENT, options.loop]
    found = {"ours": Side(command, {})}
    if options.before is not None:
        place = options.before.resolve()
        check_checkout(place)
        found["before"] = Side(command, environment_of(place))
    if not options.no_java:
        print("building java", file=sys.stderr, flush=True)
        found["java"] = Side(java_program("Consume"), {})
    return found


async def fill(namesrv: str, topic: str, messages: int, body: int, **fields: Any) -> int:
    """Makes the topic hold at least ``messages``; returns how many it holds then."""
    await create_topic(namesrv, topic)
    held = await stored_messages(namesrv, topic)
    batches = iter(range(-(-max(messages - held, 0) // BATCH)))

    async def some(producer: Producer) -> None:
        for _ in batches:
            await producer.send_batch([Message(topic, bytes(body), **fields) for _ in range(BATCH)])

    async with Producer("benchmark-consume-fill", namesrv=namesrv) as producer:
        await asyncio.gather(*[some(producer) for _ in range(SENDERS)])
    return await stored_messages(namesrv, topic, max(messages, held))


# -- runs


def settle(broker_pid: int | None) -> None:
    """Waits until the broker has finished what the last run left to it, SETTLE_LIMIT seconds at most."""
    deadline = time.monotonic() + SETTLE_LIMIT
    while broker_pid is not None and time.monotonic() < deadline:
        before = process_seconds(broker_pid)
        time.sleep(LOOK)
        if process_seconds(broker_pid) - before < IDLE * LOOK:
            return


def started(side: Side, arguments: Sequence[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*side.command, *map(str, arguments)], env={**os.environ, **side.environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(name: str, process: subprocess.Popen[str]) -> Consuming:
    """Waits for a process; returns what it has measured. Raises BenchmarkError where it has failed."""
    try:
        out, error = process.communicate(timeout=RUN_LIMIT)
    except subprocess.TimeoutExpired as timeout:
        raise BenchmarkError(f"{name}: no result after {RUN_LIMIT:.0f} s") from timeout
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise BenchmarkError(f"{name}: exit code {process.returncode}\n{error[-2000:]}")
    return msgspec.json.decode(lines[-1], type=Consuming)


def run_once(name: str, side: Side, part: str, place: Target, topic: str, options: argparse.Namespace) -> Consuming:
    stored = asyncio.run(stored_messages(place.namesrv, topic))
    tags = ATTRIBUTES.tags if part == "service" else "*"
    settle(place.broker_pid)
    fresh = round(options.rate * options.seconds)
    more = fresh if part == "latency" else options.warm_ups
    process = started(side, [part, place.namesrv, topic, tags, stored, more, place.broker_pid or 0])
    try:
        if part == "latency":
            assert process.stdout is not None
            if process.stdout.readline() == "ready\n":
                sender = [sys.executable, CLIENT, "asyncio", "send", place.namesrv, topic]
                sending = [*sender, *map(str, (options.body, options.rate, UNMEASURED, fresh))]
                subprocess.run(sending, check=True, capture_output=True, timeout=RUN_LIMIT)
        found = ended(name, process)
    except subprocess.SubprocessError as error:
        raise BenchmarkError(f"{name}: the sender failed: {error}") from error
    finally:
        process.kill()
        process.communicate()
    found.side, found.part = name, part
    wanted = (fresh, 0) if part == "latency" else (stored, stored * options.body)
    if (found.messages, found.bytes) != wanted:
        raise BenchmarkError(f"{name}, {part}: handled {found.messages:,} messages of {found.bytes:,} bytes, not {wanted}")
    if part == "pop" and found.acknowledged != stored:
        raise BenchmarkError(f"{name}, pop: the broker took {found.acknowledged} messages as done, not {stored}")
    return found


def all_rounds(part: str, found: dict[str, Side], place: Target, options: argparse.Namespace) -> Rounds:
    topic = f"{options.topic}-{part}"
    fields = msgspec.structs.asdict(ATTRIBUTES) if part == "service" else {}
    count = min(BACKLOG, options.messages) if part == "latency" else options.messages
    asyncio.run(fill(place.namesrv, topic, count, options.body, **fields))
    if part != "latency":  # a JVM that has just started is slow: the broker's is warmed up with a discarded run
        run_once("ours", found["ours"], part, place, topic, options)
    rounds: Rounds = []
    names = list(found)
    for number in range(options.rounds):
        runs = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if place.directory is not None:
                check_disk(place.directory)
            runs[name] = run_once(name, found[name], part, place, topic, options)
            runs[name].round = number + 1
        rounds.append({name: runs[name] for name in names})
        shown = ", ".join(f"{name} {_short(runs[name])}" for name in names)
        print(f"{part}, round {number + 1}/{options.rounds}: {shown}", file=sys.stderr, flush=True)
    return rounds


def _short(run: Consuming) -> str:
    if run.p50_ms is not None and run.p99_ms is not None:
        return f"p50 {run.p50_ms:.2f} ms p99 {run.p99_ms:.2f} ms {run.client_us:.0f} us"
    return f"{run.rate:,.0f}/s {run.client_us:.2f} us"


# -- what comes out


def summary(rounds: Rounds) -> dict[str, Any]:
    """Per side: medians over the rounds, and the ratios of ours to it."""
    result: dict[str, Any] = {}
    for name in rounds[0]:
        runs = [each[name] for each in rounds]

        def middle(of: Callable[[Consuming], float | None], runs: list[Consuming] = runs) -> float | None:
            known = [value for run in runs if (value := of(run)) is not None]
            return median(known) if known else None

        result[name] = {
            "rate": middle(lambda run: run.rate),
            "client_us": middle(lambda run: run.client_us),
            "broker_us": middle(lambda run: run.broker_us),
            "rss_mb": middle(lambda run: run.rss_mb),
            "p50_ms": middle(lambda run: run.p50_ms),
            "p99_ms": middle(lambda run: run.p99_ms),
            "rate_ratio": ratios(rounds, name, lambda run: run.rate),
            "client_cpu_ratio": ratios(rounds, name, lambda run: run.client_us),
        }
    return result


def ratios(rounds: Rounds, other: str, of: Callable[[Consuming], float]) -> dict[str, Any]:
    """Ours to ``other``, within each round."""
    each = [of(runs["ours"]) / of(runs[other]) for runs in rounds]
    return {"median": median(each), "min": min(each), "max": max(each), "rounds": each}


def table(part: str, figures: dict[str, Any]) -> str:
    """Medians; the ratios are of ours to the side of the line: median (lowest - highest round)."""
    lines = [(part, "msg/s", "client us", "broker us", "RSS MB", "ours / it, rate", "ours / it, CPU", "p50 ms", "p99 ms")]
    for name, side in figures.items():
        numbers = [f"{side['rate']:,.0f}", f"{side['client_us']:.2f}"]
        numbers += ["-" if side["broker_us"] is None else f"{side['broker_us']:.2f}", f"{side['rss_mb']:.0f}"]
        delays = ["-" if side[key] is None else f"{side[key]:.2f}" for key in ("p50_ms", "p99_ms")]
        lines.append((name, *numbers, spread(side["rate_ratio"]), spread(side["client_cpu_ratio"]), *delays))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    cells = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    return "\n".join("  ".join(line) for line in cells)


def spread(ratio: dict[str, Any]) -> str:
    return f"x {ratio['median']:.2f} ({ratio['min']:.2f} - {ratio['max']:.2f})"


def beyond_limits(part: str, figures: dict[str, Any]) -> list[str]:
    ours, java = figures["ours"], figures.get("java")
    if java is None:
        return [f"{part}: Java's push consumer was not measured"]
    found = []
    if part == "latency":
        if ours["p50_ms"] > java["p50_ms"] + P50_ABOVE:
            found.append(f"latency: p50 is {ours['p50_ms']:.2f} ms, Java's {java['p50_ms']:.2f} ms")
        if ours["p99_ms"] > P99_RATIO * java["p99_ms"]:
            found.append(f"latency: p99 is {ours['p99_ms']:.2f} ms, Java's {java['p99_ms']:.2f} ms")
        return found
    cpu, rate = java["client_cpu_ratio"]["median"], java["rate_ratio"]["median"]
    if cpu > LIMIT:
        found.append(f"{part}: client CPU is {cpu:.2f} x Java's, the limit is {LIMIT}")
    elif cpu > AIM:
        print(f"consume.py: {part}: client CPU is {cpu:.2f} x Java's, above the aim of {AIM}", file=sys.stderr)
    least = LEAST_POP_RATE if part == "pop" else LEAST_RATE
    if rate < least:
        found.append(f"{part}: the rate is {rate:.2f} x Java's, not {least}")
    return found


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    load = os.getloadavg()[0]
    measured: dict[str, Rounds] = {}
    try:
        found = sides(options)
        with target(options) as place:
            for part in options.parts:
                measured[part] = all_rounds(part, found, place, options)
    except (BenchmarkError, BareError, OSError) as error:
        print(f"consume.py: {error}", file=sys.stderr)
        return 2
    figures = {part: summary(rounds) for part, rounds in measured.items()}
    settings = {name: getattr(options, name) for name in ("messages", "body", "rounds", "warm_ups", "rate", "seconds", "loop")}
    packages = {package: version(package) for package in ("uvloop", "msgspec")}
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count(), **packages}
    runs = [msgspec.to_builtins(run) for rounds in measured.values() for each in rounds for run in each.values()]
    result = {
        "date": date.today().isoformat(), "machine": machine, "load": [load, os.getloadavg()[0]], "settings": settings,
        "parts": figures, "runs": runs,
    }  # fmt: skip
    if options.json == "-":
        print(json.dumps(result, indent=2))
    else:
        print(f"load average {load:.1f} before, {os.getloadavg()[0]:.1f} after")
        print("\n\n".join(table(part, each) for part, each in figures.items()))
        if options.json:
            Path(options.json).write_text(json.dumps(result, indent=2) + "\n")
    wrong = [text for part, each in figures.items() for text in beyond_limits(part, each)] if options.check else []
    for text in wrong:
        print(f"consume.py: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
