"""The fault matrix of the Spark source and sink: ``python benchmarks/spark_faults.py [--seeds 20] [--only WORD ...]``.

Every run puts its fault in, starts again from the same checkpoint where the fault ended the query, and is then counted by a process
that has no part in it: what was produced, what the sink holds, what is lost, what is doubled and how much of that may be, and
whether copies in a topic carry the same RMQ_SPARK_ID. A run in which no fault struck, or elsewhere than meant, and one that was
given up, is void and made again, three times at most; then it fails. One line of JSON for each attempt (``repeated``: another one
follows), and a table at the end, which counts void ones in their own column only. Everything is on a real broker. Needs the extra
``test``, Java, and what RealCluster needs.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "spark"))
from faults import checker, kills, queries, runs
from faults.attempts import Attempt, attempts
from faults.history import Run

from rmq_async.testing.cluster import RealCluster

FAULTS = 5
"""Tasks that fail in one run, each in a micro-batch of its own."""
Case = Callable[[runs.Bench, int], Run]


def failing(place: str, action: str, sink: str, **options: object) -> Case:
    names = {"read": "of a read", "write": "of a write", "written": "of a write, after its last row"}
    what = "raises" if action == "raise" else "loses its worker (SIGKILL)"
    together = ", queues read together" if options else ""
    return lambda bench, seed: runs.task_faults(
        bench, f"task {names[place]} {what}{together}", seed, sink, *[(place, action)] * FAULTS, **options
    )


IN_SESSION: dict[str, Case] = {
    "task raises, read to parquet": failing("read", "raise", "parquet"),
    "worker killed, read to parquet": failing("read", "kill", "parquet"),
    "task raises, read to topic": failing("read", "raise", "topic"),
    "task raises, write": failing("write", "raise", "topic"),
    "worker killed, write": failing("write", "kill", "topic"),
    "worker killed after its last row, write": failing("written", "kill", "topic"),
    "worker killed, write of queues together": failing("write", "kill", "topic", maxPartitions=1),
    "broker killed, read": lambda bench, seed: runs.broker_restart(bench, seed, "parquet"),
    "broker killed, write": lambda bench, seed: runs.broker_restart(bench, seed, "topic"),
    "queue added": lambda bench, seed: runs.queue_added(bench, seed),
    "messages deleted": lambda bench, seed: runs.retention(bench, seed, real=True),
    "messages deleted while they are read": lambda bench, seed: runs.vanishing(bench, seed, real=True),
    "master away, replica behind": lambda bench, seed: runs.lagging_replica(bench, seed),
}
TAKEN_BACK = {f"commit taken back, {sink}": [(mode, sink) for mode in runs.MODES] for sink in runs.SINKS}
KILLS = {f"driver killed, {sink}": sink for sink in runs.SINKS}
"""Their queries stand at all points, and start as one of ``MODES`` after the other, by the seed."""
CASES = (*IN_SESSION, *TAKEN_BACK, *KILLS)


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def wait(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(300)


def session(place: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = (
        SparkSession.builder.master("local[2,2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .getOrCreate()
    )
    made.sparkContext.setLogLevel("OFF")
    queries.register(made)
    return made


def judged(done: list[Run]) -> list[checker.Verdict]:
    """By a process of its own."""
    command = [sys.executable, checker.__file__, *(run.directory for run in done)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [checker.Verdict(**json.loads(line)) for line in lines]


@contextmanager
def cluster(loop: Loop) -> Iterator[RealCluster]:
    real = RealCluster()
    loop.wait(real.start())
    try:
        yield real
    finally:
        loop.wait(real.stop())


@dataclass
class Matrix:
    """All that its cases are made with."""

    loop: Loop
    place: Path
    real: RealCluster

    def __post_init__(self) -> None:
        self.feeder = runs.Feeder(self.loop.wait, self.real.namesrv)

    @functools.cached_property
    def bench(self) -> runs.Bench:
        return runs.Bench(session(self.place), self.loop.wait, self.place, self.real.namesrv, self.restart)

    def restart(self, meanwhile: Callable[[], None]) -> None:
        self.loop.wait(self.real.brokers[0].kill())
        try:
            meanwhile()
        finally:
            self.loop.wait(self.real.brokers[0].start())

    def attempts(self, name: str, seed: int) -> Iterator[Attempt]:
        """Makes the runs of a case for a seed."""
        if name in KILLS:
            mode = runs.MODES[seed % len(runs.MODES)]
            kinds = [(point, mode, KILLS[name]) for point in kills.POINTS]
            return attempts(name, seed, kinds, lambda left: judged(self.kill(seed, left)), self.tidy)
        if name in TAKEN_BACK:
            return attempts(
                name, seed, TAKEN_BACK[name], lambda kinds: judged(runs.replayed(self.bench, seed, kinds)), self.tidy
            )
        return attempts(
            name, seed, [IN_SESSION[name]], lambda cases: judged([case(self.bench, seed) for case in cases]), self.tidy
        )

    def kill(self, seed: int, kinds: Sequence[tuple[str, str, str]]) -> list[Run]:
        return kills.kill_round(self.feeder, self.place, self.real.namesrv, seed, kinds)

    def tidy(self) -> None:
        """Ends the queries that a run left when it was given up: they would hold the cores of the session."""
        if "bench" in self.__dict__:
            for query in self.bench.spark.streams.active:
                query.stop()


def matrix(options: argparse.Namespace) -> list[Attempt]:
    chosen = [name for name in CASES if not options.only or any(names(word, name) for word in options.only)]
    loop, done = Loop(), []
    until = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="rmq-faults-") as temporary, cluster(loop) as real:
        all_of_it = Matrix(loop, Path(options.keep or temporary), real)
        for seed in range(options.first, options.first + options.seeds):
            for name in chosen:
                if time.monotonic() > until:
                    print("the time is over", file=sys.stderr)
                    return done
                for attempt in all_of_it.attempts(name, seed):
                    done.append(attempt)
                    shown = {**attempt.verdict._asdict(), "good": attempt.verdict.good, "repeated": attempt.repeated}
                    print(json.dumps(shown), flush=True)
    return done


def names(word: str, case: str) -> bool:
    """Whether ``word`` of the command line names the case: a word that is a case's whole name names that one only."""
    return word == case if word in CASES else word in case


def table(verdicts: list[checker.Verdict]) -> str:
    """A line for each case, sums over those of its runs that are not void."""
    rows = ["| case | runs | faults | expected | read | lost | dup | allowed dup | unequal ids | extra | void | failed |"]
    rows.append("|---|" + "--:|" * 11)
    for case in dict.fromkeys(verdict.case for verdict in verdicts):
        every = [verdict for verdict in verdicts if verdict.case == case]
        of = [verdict for verdict in every if not verdict.void]
        sums = [
            sum(getattr(one, name) for one in of) for name in ("produced", "read", "lost", "dup", "allowed", "unequal", "extra")
        ]
        faults, failed = sum(max(one.faults, 1) for one in of), sum(bool(one.failed) for one in every)
        rows.append(
            f"| {case} | {' | '.join(str(value) for value in (len(of), faults, *sums, len(every) - len(of), failed))} |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="spark_faults.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases:\n  " + "\n  ".join(CASES),
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, default=20, help="runs of each case (default: 20)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="only these cases, and those with one of these in their names"
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no further run after this time")
    parser.add_argument("--keep", metavar="DIRECTORY", help="keep histories, checkpoints and files here")
    options = parser.parse_args()
    for word in options.only or ():
        if not any(word in name for name in CASES):
            parser.error(f"--only {word}: no case has that in its name")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # drivers and brokers are ended on the way out
    done = matrix(options)
    print(table([attempt.verdict for attempt in done]))
    bad = [attempt.verdict for attempt in done if attempt.bad]
    for verdict in bad:
        print(f"NOT AS PROMISED: {verdict}", file=sys.stderr)
    return 1 if bad or not done else 0


if __name__ == "__main__":
    sys.exit(main())
