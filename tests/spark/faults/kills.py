"""Drivers that are killed: SIGKILL to the driver, its JVM and its workers while queries stand still at five points.

A round is one seed: a driver with one query for each point, which all come to their points in a seeded micro-batch; one
kill for all of them; more messages; a second driver on the same checkpoints, that reads what there is. Three points, and all of a
topic as a sink, are held by our reader or writer, which wait there for ever. Parquet's two last points are inside Spark: there its
own log lines hold the thread of the query, written to a pipe that is full. What the disk holds at the kill is looked at, and a
run that is not at its point is void.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .feeding import Feeder, spread
from .history import Fault, Run, ticks
from .runs import new_run, with_faults

POINTS = ("before offset log", "after offset log", "mid-read", "after sink write", "before commit")
LINES = {"after sink write": "Start to commit write Job.*", "before commit": "Committed batch.*"}
"""What Spark's file sink logs when every task has written, and when its own log has the micro-batch."""
DRIVER = Path(__file__).with_name("driver.py")
EACH = 180.0
"""Seconds in which the second driver ends one query after the other, on average; it gives up each one by itself, too."""


class Pipe:
    """A pipe by name that a JVM logs to, until it is full."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.end = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self.end, fcntl.F_SETPIPE_SZ, 4096)

    def fill(self) -> None:
        for size in (1024, 1):
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(self.end, b"." * size)

    def close(self) -> None:
        os.close(self.end)


class Driver:
    """A process group of its own."""

    def __init__(self, log: Path, logging: Path, what: str, runs: Sequence[Run]) -> None:
        command = [sys.executable, str(DRIVER), str(logging), what, *(run.directory for run in runs)]
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Of everything that it started: the JVM is in its group, Spark's workers have groups of their own in its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in session_of(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        for _ in ticks("processes of a killed driver are still there", 20):
            if not session_of(self.process.pid):
                return


def session_of(leader: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry))
    return found


def kill_round(feeder: Feeder, place: Path, namesrv: str, seed: int, kinds: Sequence[tuple[str, str, str]]) -> list[Run]:
    """``kinds``: point, mode and sink of each query."""
    rng = random.Random(seed)
    runs = [_planned(feeder, place, namesrv, seed, *kind) for kind in kinds]
    points = [kind[0] for kind in kinds]
    with _round(place / f"round-{seed}-{time.time_ns()}") as (base, pipes):
        first = Driver(base / "driver.log", base / "log4j2.properties", "faults", runs)
        try:
            _to_their_points(feeder, first, runs, points, pipes, rng)
            time.sleep(rng.uniform(0.0, 0.05))
        finally:
            first.kill()
        for run, point in zip(runs, points, strict=True):
            _look(run, point)
            feeder.send(run, spread(rng, 1, 30))
        second = Driver(base / "driver.log", base / "quiet.properties", "none", runs)
        try:
            for _ in ticks("the second driver did not end", EACH * (len(runs) + 1)):
                if not second.alive():
                    break
        finally:
            second.kill()
        if second.process.returncode:
            raise RuntimeError(f"the second driver ended with {second.process.returncode}:\n{_tail(base / 'driver.log')}")
    return runs


def _planned(feeder: Feeder, place: Path, namesrv: str, seed: int, point: str, mode: str, sink: str) -> Run:
    run = new_run(
        feeder, place, namesrv, f"driver killed {point}: {sink}, {mode}", seed, sink, mode, 2, maxOffsetsPerTrigger=40
    )
    rng = random.Random(f"{seed} {point} {mode} {sink}")  # the same in whichever round it is made again
    batch, row = rng.randint(0, 1), rng.randint(1, 10)
    if (point, mode) == ("before offset log", "latest"):
        batch = 1  # before its first offset log a query has not begun: what "latest" is, the next start says
    both = range(2)
    if point == "before offset log":
        faults = [Fault("latest", "wait", batch, go="never")]
    elif point == "after offset log":
        faults = [Fault("partitions", "wait", batch, go="never")]
    elif point == "mid-read":
        faults = [Fault("read" if sink == "parquet" else "write", "wait", batch, rng.randrange(2), row, go="never")]
    elif sink == "parquet":
        faults = [Fault("read", "wait", batch, number, go="on") for number in both]
    elif point == "after sink write":
        faults = [Fault("written", "wait", batch, number, go="never") for number in both]
    else:
        faults = [Fault("commit", "wait", batch, go="never")]
    return with_faults(run, *faults)


def _to_their_points(
    feeder: Feeder, driver: Driver, runs: Sequence[Run], points: Sequence[str], pipes: dict[str, Pipe], rng: random.Random
) -> None:
    for run in runs:
        run.wait_event("initial", alive=driver.alive)
        feeder.send(run, spread(rng, 50, 80))
        run.note("fed")
    for run in runs:
        run.wait_event("fired", len(run.faults), alive=driver.alive)
    for point in ("before commit", "after sink write"):  # those that go further pass the other's pipe first
        held = [run for run, its in zip(runs, points, strict=True) if its == point and run.target is None]
        pipes[point].fill()
        for run in held:
            run.note("injected", what=f"full pipe: {point}")
            run.signal("on")
        for run in held:
            for _ in ticks(f"{run.case}: its point was not reached"):
                if _at(run, point):
                    break
    time.sleep(0.3)


def _at(run: Run, point: str) -> bool:
    """Whether the disk says so."""
    batch = run.faults[0].batch
    state = run.state()
    planned, committed = batch in state["offsets"], batch in state["commits"]
    if point == "before offset log":
        return not planned
    logged = batch in state["manifest"]
    if run.target is None and point == "after sink write":
        complete = sum(_is_complete(path) for path in run.out.glob("part-*.parquet"))
        return planned and not committed and not logged and complete == 2 * (batch + 1)
    if run.target is None and logged != (point == "before commit"):
        return False
    return planned and not committed


def _is_complete(path: Path) -> bool:
    data = path.read_bytes()
    return len(data) > 8 and data.endswith(b"PAR1")


def _look(run: Run, point: str) -> None:
    if not _at(run, point):
        run.note("void", why=f"killed elsewhere than {point} of micro-batch {run.faults[0].batch}: {run.state()}")
    run.note("killed", state=run.state(), again=[])


@contextlib.contextmanager
def _round(base: Path) -> Iterator[tuple[Path, dict[str, Pipe]]]:
    """Logging: errors to the console; the two lines to their pipes."""
    base.mkdir(parents=True)
    pipes = {point: Pipe(base / point.replace(" ", "-")) for point in LINES}
    quiet = (
        "rootLogger.level = error\nrootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\nappender.console.name = console\nappender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\nappender.console.layout.pattern = %d %p %c: %m%n\n"
    )
    (base / "quiet.properties").write_text(quiet)
    lines = ["logger.sql.name = org.apache.spark.sql.execution", "logger.sql.level = info", "logger.sql.additivity = false"]
    for name, (point, text) in zip(("one", "two"), LINES.items(), strict=True):
        lines += [
            f"logger.sql.appenderRef.{name}.ref = {name}",
            f"appender.{name}.type = File",
            f"appender.{name}.name = {name}",
            f"appender.{name}.fileName = {base / point.replace(' ', '-')}",
            f"appender.{name}.append = true",
            f"appender.{name}.bufferedIo = false",
            f"appender.{name}.layout.type = PatternLayout",
            f"appender.{name}.layout.pattern = %m%n",
            f"appender.{name}.filter.line.type = RegexFilter",
            f"appender.{name}.filter.line.regex = {text}",
            f"appender.{name}.filter.line.onMatch = ACCEPT",
            f"appender.{name}.filter.line.onMismatch = DENY",
        ]
    (base / "log4j2.properties").write_text(quiet + "\n".join(lines) + "\n")
    try:
        yield base, pipes
    finally:
        for pipe in pipes.values():
            pipe.close()


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
