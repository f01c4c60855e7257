"""What happens to rate, CPU and memory when there is more of something: ``python benchmarks/scale.py [--parts in-flight,memory]``.

Each point is a process of its own. In flight, processes and body sizes are measured on the official broker (started here, with a
store that is deleted afterwards, or ``--namesrv``), brokers and memory on the embedded one in another process, of which many
start in a second. Two points next to each other of which the second has less than half the rate are a cliff, and are reported; so
are targets that were missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves out a script's own directory
from support.clusters import STORED_OVERHEAD, BenchmarkError, create_topic, target
from support.scale_client import ScaleResult, ScaleSpec

from rmq_async import Admin, RocketMQError

CLIENT: Final = Path(__file__).resolve().parent / "support" / "scale_client.py"
TOPIC: Final = "Scale"
MOST: Final = 65_535
CLIFF: Final = 0.5
PILE_LIMIT: Final = 1536.0
"""Bytes of a send_async in flight beside its body, at most."""
IN_FLIGHT_BYTES: Final = 32 << 20
"""Bodies under way together, where their size is what grows."""


class Place(NamedTuple):
    namesrv: str
    server_pid: int | None = None


class Series(NamedTuple):
    """``spec``: of one point. ``servers``: points each have an embedded server of so many brokers; None for the real broker."""

    title: str
    axis: str
    points: Sequence[int]
    spec: Callable[[int], dict[str, Any]]
    servers: Callable[[int], int] | None = None


SERIES: Final = {
    "in-flight": Series("In flight", "sends in flight", (1, 8, 64, 512, 1024, 4096, 8192), lambda n: {"in_flight": n}),
    "brokers": Series("Brokers", "brokers", (1, 2, 5, 10, 20, 50), lambda _: {}, lambda n: n),
    "processes": Series("Processes", "processes", (1, 2), lambda _: {}),
    "bodies": Series(
        "Bodies", "bytes of a body", (100, 1024, 10_240, 102_400, 1 << 20, 4 << 20),
        lambda n: {"body": n, "in_flight": max(1, min(64, IN_FLIGHT_BYTES // n))},
    ),
}  # fmt: skip
PARTS: Final = (*SERIES, "memory")


@asynccontextmanager
async def embedded(brokers: int) -> AsyncIterator[Place]:
    """``rmq server`` in a process of its own."""
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "rmq_async.cli",
        "server",
        "--port",
        "0",
        "--json",
        "--brokers",
        str(brokers),
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe)
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 20)
        if not line:
            raise BenchmarkError("the embedded broker did not start")
        announced = msgspec.json.decode(line)
        yield Place(announced["namesrv"], process.pid)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def start_client(spec: ScaleSpec) -> subprocess.Popen[str]:
    command = [sys.executable, str(CLIENT), msgspec.json.encode(spec).decode()]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_clients(specs: Sequence[ScaleSpec]) -> list[ScaleResult]:
    """All at the same time."""
    processes = [start_client(spec) for spec in specs]
    try:
        outputs = [process.communicate(timeout=spec.seconds + 150) for process, spec in zip(processes, specs, strict=True)]
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"no result after {error.timeout:.0f} s") from error
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            raise BenchmarkError(f"exit code {process.returncode}\n{errors[-2000:]}")
    return [msgspec.json.decode(out, type=ScaleResult) for out, _ in outputs]


def together(results: Sequence[ScaleResult]) -> dict[str, Any]:
    """One point of a series from its processes."""
    first = results[0]
    rate, messages = sum(each.rate for each in results), sum(each.messages for each in results)
    failures: dict[str, int] = {}
    for each in results:
        for text, number in each.failures.items():
            failures[text] = failures.get(text, 0) + number
    cpu = sum(each.client_us * each.messages for each in results) / max(messages, 1)
    return {
        "rate": rate, "client_us": cpu, "p50_ms": first.p50_ms, "p99_ms": first.p99_ms,
        "rss_mb": max(each.rss_mb for each in results), "failures": failures, "acknowledged": sum(e.acknowledged for e in results),
    }  # fmt: skip


async def measure_series(name: str, options: argparse.Namespace, real: Callable[[], Place]) -> list[dict[str, Any]]:
    series = SERIES[name]
    points = [point for point in series.points if options.most is None or point <= options.most]
    share = options.max_gb * 1e9 / sum(len(SERIES[part].points) for part in options.parts if part in SERIES)
    rows = []
    for point in points:
        settings = {"topic": TOPIC, "seconds": options.seconds, **series.spec(point)}
        copies = point if name == "processes" else 1
        size = settings.get("body", 128) + STORED_OVERHEAD
        settings["max_messages"] = max(2 * settings.get("in_flight", 64), int(share / copies / size))
        if series.servers is not None:
            async with embedded(series.servers(point)) as place:
                await prepare(place)
                spec = ScaleSpec(kind="rate", namesrv=place.namesrv, **{**settings, "max_messages": 1 << 40})
                results = await asyncio.to_thread(run_clients, [spec])
        else:
            spec = ScaleSpec(kind="rate", namesrv=real().namesrv, **settings)
            results = await asyncio.to_thread(run_clients, [spec] * copies)
        rows.append({series.axis: point, **together(results)})
        print(f"{name} {point:,}: {rows[-1]['rate']:,.0f}/s {rows[-1]['client_us']:.2f} us", file=sys.stderr, flush=True)
    return rows


async def prepare(place: Place) -> None:
    async with Admin(namesrv=place.namesrv) as admin:
        await admin.create_topic(TOPIC)


async def measure_memory(options: argparse.Namespace) -> list[dict[str, Any]]:
    number = min(MOST, options.most or MOST)
    rows = []
    for callbacks in (False, True):
        async with embedded(1) as place:
            await prepare(place)
            spec = ScaleSpec(
                kind="pile",
                namesrv=place.namesrv,
                topic=TOPIC,
                in_flight=number,
                server_pid=place.server_pid,
                callbacks=callbacks,
            )
            (result,) = await asyncio.to_thread(run_clients, [spec])
        kept = "callbacks" if callbacks else "futures kept"
        rows.append(
            {"send_async": kept, "in flight": number, "answered": result.acknowledged, "bytes_each": result.bytes_each,
             "rss_mb": result.rss_mb, "failures": result.failures}
        )  # fmt: skip
        print(f"memory, {kept}: {result.bytes_each:,.0f} bytes each", file=sys.stderr, flush=True)
    return rows


def problems(parts: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Cliffs, failures and missed targets, a line each."""
    found = []
    for name, rows in parts.items():
        for row in rows:
            found += [f"{name}: {number:,} x {text}" for text, number in row.get("failures", {}).items()]
        if name in SERIES and name != "bodies":  # larger bodies cannot go at the rate of smaller ones
            axis = SERIES[name].axis
            for one, other in pairwise(rows):
                if other["rate"] < one["rate"] * CLIFF:
                    found.append(
                        f"{name}: a cliff, {one['rate']:,.0f}/s at {one[axis]:,} and {other['rate']:,.0f}/s at {other[axis]:,}"
                    )
    for row in parts.get("memory", []):
        if row["answered"] != row["in flight"]:
            found.append(f"memory: {row['answered']:,} of {row['in flight']:,} were answered")
        if row["bytes_each"] > PILE_LIMIT:
            found.append(f"memory, {row['send_async']}: {row['bytes_each']:,.0f} bytes each, the target is {PILE_LIMIT:,.0f}")
    return found


_COLUMNS: Final = {
    "rate": ("msg/s", ",.0f"), "client_us": ("client us", ".2f"), "p50_ms": ("p50 ms", ",.2f"), "p99_ms": ("p99 ms", ",.2f"),
    "rss_mb": ("RSS MB", ",.0f"), "bytes_each": ("bytes each", ",.0f"),
}  # fmt: skip


def _title(part: str) -> str:
    return SERIES[part].title if part in SERIES else part.title()


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown."""
    shown = [name for name in rows[0] if name not in ("failures", "acknowledged")]
    lines = [[_COLUMNS.get(name, (name, ""))[0] for name in shown], ["---"] * len(shown)]
    lines += [[_cell(name, row[name]) for name in shown] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return format(value, _COLUMNS[name][1]) if name in _COLUMNS else f"{value:,}" if isinstance(value, int) else str(value)


@contextmanager
def real_broker(options: argparse.Namespace) -> Iterator[Callable[[], Place]]:
    """The real broker, where a part needs one; its topic is there."""
    if not any(part in SERIES and SERIES[part].servers is None for part in options.parts):
        yield lambda: Place("")
        return
    with target(options) as place:
        asyncio.run(create_topic(place.namesrv, TOPIC))
        heat = ScaleSpec(kind="rate", namesrv=place.namesrv, topic=TOPIC, seconds=options.seconds)
        run_clients([heat])
        yield lambda: Place(place.namesrv)


async def measure(options: argparse.Namespace, real: Callable[[], Place]) -> dict[str, list[dict[str, Any]]]:
    parts = {}
    for part in options.parts:
        if part == "memory":
            parts[part] = await measure_memory(options)
        else:
            parts[part] = await measure_series(part, options, real)
    return parts


def parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scale.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=3.0, help="window of one point; a quarter more before it (default: 3)")
    parser.add_argument("--most", type=int, help="leave out points above this")
    parser.add_argument("--namesrv", help="host:port of a running cluster instead of an official broker of our own")
    parser.add_argument("--max-gb", type=float, default=3.0, help="what the real broker's store may grow by (default: 3)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    options = parser.parse_args(given)
    options.parts = [part.strip() for part in options.parts.split(",") if part.strip()]
    options.broker_pid = None
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown or not options.parts:
        parser.error(f"--parts: {', '.join(unknown) or 'none given'}; there are {', '.join(PARTS)}")
    if options.seconds <= 0 or options.max_gb <= 0 or (options.most is not None and options.most < 1):
        parser.error("--seconds, --max-gb and --most must be above 0")
    return options


def main(given: list[str] | None = None) -> int:
    options = parse(given)
    try:
        with real_broker(options) as real:
            parts = asyncio.run(measure(options, real))
    except (BenchmarkError, RocketMQError, OSError, TimeoutError) as error:
        print(f"scale.py: {error}", file=sys.stderr)
        return 2
    found = problems(parts)
    machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
    settings = {"seconds": options.seconds, "max_gb": options.max_gb}
    document = msgspec.json.format(
        msgspec.json.encode({"machine": machine, "settings": settings, "parts": parts, "problems": found})
    )  # fmt: skip
    text = "\n\n".join(f"{_title(name)}\n\n{table(rows)}" for name, rows in parts.items())
    if options.json == "-":
        print(document.decode())
    else:
        print(text)
        if options.json:
            Path(options.json).write_bytes(document)
    for problem in found:
        print(f"scale.py: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
