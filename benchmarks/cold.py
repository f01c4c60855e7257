"""Thousands of first sends at once, of a client that has no route and no connection yet: ``python benchmarks/cold.py``.

``burst``: to an official broker with stock settings, started here (with a store that is deleted afterwards) or ``--namesrv``; all
of them must be stored. Bursts of other clients come before, until one is stored without a retry, since a JVM that has just started
is slow; ``--fresh`` leaves them out. ``start``: to such a broker that was started for this burst alone, with default settings; all
of them must be stored. ``oneway``: one-way messages to such a broker; none may be dropped, though some are where the machine stops
the broker for longer than it lets messages wait. ``hole``: to a broker that drops SYNs; all of them fail, and what counts is when
the last one ends, and what a waiting call costs.

Each line is a process of its own, and names the machine's load before it. Exit code 1: a send failed, or a target was missed.
``--check`` is ``--parts start --runs 5``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # PYTHONSAFEPATH leaves out a script's own directory
sys.path.insert(0, str(Path(__file__).resolve().parent))
from send import BenchmarkError, create_topic, stored_messages, target

from rmq_async import Message, Producer, RocketMQError
from rmq_async.testing import ScriptedPeer, routes_to
from tests.support.holes import black_hole

BURSTS: Final = ((20_000, None), (65_535, 15.0))
"""Sends, and the ``timeout`` of each; None: the default."""
STARTS: Final = {"start": 20_000, "oneway": 60_000}
"""Sends to a broker that was just started."""
WAITS: Final = (1_000, 20_000, 65_535)
WAIT: Final = 4.0
WARMING: Final = 20_000
MOST_WARMING: Final = 10
"""Sends of a burst that warms the broker, and how many such bursts there are at most."""
LAST_WITHIN: Final = 5.0
"""Seconds after which the last of 20,000 sends to a broker that drops SYNs is over, with a timeout of 4 s."""
MOST_DEARER: Final = 2.0
"""CPU of a waiting call among 65,535 against that among 1,000."""


class ColdSpec(msgspec.Struct, kw_only=True, frozen=True):
    """``part``: burst, start, oneway or hole. ``namesrv``: None for a broker that drops SYNs. ``timeout``: None for the default."""

    part: str
    sends: int
    namesrv: str | None = None
    topic: str = "Cold"
    timeout: float | None = None
    loop: str = "uvloop"


class ColdResult(msgspec.Struct, kw_only=True):
    """Seconds from the first call on: when the first and the last one ended. ``cpu_us``: client CPU of one call."""

    stored: int
    first: float
    last: float
    cpu_us: float
    retried: int
    failures: dict[str, int]


# -- one burst, in a process of its own


async def burst(spec: ColdSpec, namesrv: str) -> ColdResult:
    ended: list[float] = []
    failures: Counter[str] = Counter()
    retried = 0
    body = os.urandom(128)
    given: dict[str, Any] = {} if spec.timeout is None else {"timeout": spec.timeout}

    async def send() -> None:
        nonlocal retried
        try:
            result = await producer.send(Message(spec.topic, body))
            retried += result.attempts > 1
        except RocketMQError as error:
            failures[f"{type(error).__name__}: {error}"[:100]] += 1
        ended.append(time.monotonic())

    async def send_oneway() -> None:
        for _ in range(spec.sends):
            await producer.send_oneway(Message(spec.topic, body))
            ended.append(time.monotonic())
        await producer.flush()

    async with Producer("cold", namesrv=namesrv, stop_timeout=0.0, **given) as producer:
        began, cpu = time.monotonic(), time.process_time()
        if spec.part == "oneway":
            await send_oneway()
        else:
            await asyncio.gather(*[send() for _ in range(spec.sends)])
        cpu = time.process_time() - cpu
    stored = spec.sends - failures.total()
    if spec.part == "oneway" and (stored := await stored_messages(namesrv, spec.topic, spec.sends)) < spec.sends:
        failures["dropped by the broker"] = spec.sends - stored
    return ColdResult(
        stored=stored, first=ended[0] - began, last=ended[-1] - began, cpu_us=cpu * 1e6 / spec.sends,
        retried=retried, failures=dict(failures.most_common(5)),
    )  # fmt: skip


async def client(spec: ColdSpec) -> ColdResult:
    if spec.namesrv is not None:
        return await burst(spec, spec.namesrv)
    with black_hole() as hole:
        async with ScriptedPeer(aside=routes_to(hole)) as names:
            return await burst(spec, names.address)


def run_client(spec: ColdSpec) -> ColdResult:
    command = [sys.executable, str(Path(__file__)), "--client", msgspec.json.encode(spec).decode()]
    try:
        done = subprocess.run(command, capture_output=True, timeout=180, check=False)
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no result after {error.timeout:.0f} s") from error
    if done.returncode:
        raise BenchmarkError(f"exit code {done.returncode}\n{done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=ColdResult)


# -- all of them


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    specs: list[ColdSpec] = []
    if "hole" in options.parts:
        specs += [ColdSpec(part="hole", sends=number, timeout=WAIT, loop=options.loop) for number in WAITS]
    rows = [row(spec) for spec in specs if not options.most or spec.sends <= options.most]
    for _ in range(options.runs):
        rows += [started(part, options) for part in STARTS if part in options.parts]
    if "burst" not in options.parts:
        return rows
    with target(options) as place:
        if not options.fresh:
            warm(place.namesrv, options)
        for run in range(options.runs):
            for number, timeout in BURSTS:
                sends = min(number, options.most or number)
                topic = f"Cold-{os.getpid()}-{run}-{number}"
                spec = ColdSpec(
                    part="burst", sends=sends, namesrv=place.namesrv, topic=topic, timeout=timeout, loop=options.loop
                )
                rows.append(row(spec))
    return rows


def started(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sends to a broker that is started for this."""
    with target(options) as place:
        topic = f"Cold-{os.getpid()}-{part}"
        asyncio.run(create_topic(place.namesrv, topic))
        sends = min(STARTS[part], options.most or STARTS[part])
        return row(ColdSpec(part=part, sends=sends, namesrv=place.namesrv, topic=topic, loop=options.loop))


def warm(namesrv: str, options: argparse.Namespace) -> None:
    """Has the broker's code compiled."""
    for number in range(MOST_WARMING):
        sends, topic = min(WARMING, options.most or WARMING), f"Warm-{os.getpid()}-{number}"
        spec = ColdSpec(part="burst", sends=sends, namesrv=namesrv, topic=topic, timeout=60.0, loop=options.loop)
        result = run_client(spec)
        if result.stored == sends and not result.retried:
            return


def row(spec: ColdSpec) -> dict[str, Any]:
    load = os.getloadavg()[0]
    result = run_client(spec)
    found = {"part": spec.part, "topic": spec.topic, "sends": spec.sends, "timeout": spec.timeout, "load": load}
    text = f"{spec.part} {spec.sends:,}: {result.stored:,} stored, {result.retried:,} retried, {result.last:.2f} s"
    print(f"{text}, {result.cpu_us:.0f} us, load {load:.1f}", file=sys.stderr, flush=True)
    return {**found, **msgspec.structs.asdict(result)}


def problems(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Failures and missed targets, a line each."""
    found = []
    for each in rows:
        if each["part"] != "hole":
            found += [f"{each['part']} {each['sends']:,}: {count:,} x {text}" for text, count in each["failures"].items()]
        elif each["stored"]:
            found.append(f"hole {each['sends']:,}: {each['stored']:,} were stored")
        elif each["sends"] == 20_000 and each["last"] > LAST_WITHIN:
            found.append(f"hole 20,000: the last one ended after {each['last']:.2f} s, the target is {LAST_WITHIN:.1f}")
    cpu = {each["sends"]: each["cpu_us"] for each in rows if each["part"] == "hole"}
    if cpu and cpu[max(cpu)] > MOST_DEARER * cpu[min(cpu)]:
        found.append(f"hole: {cpu[max(cpu)]:.0f} us a call among {max(cpu):,}, {cpu[min(cpu)]:.0f} among {min(cpu):,}")
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    names = {
        "burst": "a stock broker", "start": "a stock broker just started", "oneway": "a stock broker just started, one-way",
        "hole": "a broker that drops SYNs",
    }  # fmt: skip
    lines = ["| to | sends | timeout | stored | retried | first s | last s | client us |", "|---|---|---|---|---|---|---|---|"]
    for each in rows:
        to = names[each["part"]]
        timeout = "default" if each["timeout"] is None else f"{each['timeout']:g}"
        lines.append(
            f"| {to} | {each['sends']:,} | {timeout} | {each['stored']:,} | {each['retried']:,} | {each['first']:.2f} "
            f"| {each['last']:.2f} | {each['cpu_us']:.0f} |"
        )
    return "\n".join(lines)


def parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cold.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only the bursts to brokers just started; five runs")
    parser.add_argument("--parts", help="of burst, start, oneway, hole (default: burst and hole)")
    parser.add_argument("--runs", type=int, help="how often the bursts to a broker are sent (default: 3, 5 with --check)")
    parser.add_argument("--fresh", action="store_true", help="do not warm the broker before")
    parser.add_argument("--most", type=int, help="sends at once, at most")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of an official broker of our own")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    parts = ("start" if options.check else "burst,hole") if options.parts is None else options.parts
    options.parts = [part.strip() for part in parts.split(",") if part.strip()]
    options.runs = (5 if options.check else 3) if options.runs is None else options.runs
    options.broker_pid = None
    if not options.parts or not {*options.parts} <= {"burst", "hole", *STARTS}:
        parser.error("--parts: there are burst, start, oneway, hole")
    if options.runs < 1 or (options.most is not None and options.most < 1):
        parser.error("--runs and --most must be above 0")
    return options


def main(given: list[str] | None = None) -> int:
    options = parse(given)
    if options.client:
        spec = msgspec.json.decode(options.client, type=ColdSpec)
        factory = uvloop.new_event_loop if spec.loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            sys.stdout.buffer.write(msgspec.json.encode(runner.run(client(spec))) + b"\n")
        return 0
    try:
        rows = measure(options)
    except (BenchmarkError, RocketMQError, OSError) as error:
        print(f"cold.py: {error}", file=sys.stderr)
        return 2
    found = problems(rows)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    document = msgspec.json.format(msgspec.json.encode({"machine": machine, "rows": rows, "problems": found}))
    if options.json == "-":
        print(document.decode())
    else:
        print(table(rows))
        if options.json:
            Path(options.json).write_bytes(document)
    for problem in found:
        print(f"cold.py: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
