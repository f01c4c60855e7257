"""A run's directory: what all processes of a run write down, and files by which they wait for each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

PATIENCE = 600.0
"""Seconds that a process waits at a fault until the driver lets it go on or kills it."""


LATE = "Python worker failed to connect back"
"""What Spark's error says when the machine is so busy that one of its processes needs 10 s to start."""


class QueryFailedError(RuntimeError):
    """A query of a run failed where it had to go on."""


@dataclass(frozen=True)
class Fault:
    """``place``: "latest", "partitions", "read", "write", "written" or "commit"; ``action``: "raise", "kill" (this process) or
    "wait" (until the file ``go`` is there). ``number``: the queue of a read, the partition of a write. ``row``: after how many
    rows of it. Only first attempts of tasks are hit."""

    place: str
    action: str
    batch: int = 0
    number: int = 0
    row: int = 0
    go: str = "go"


@dataclass(frozen=True)
class Run:
    """``mode``: where the query starts. ``target``: the topic it writes to; None for Parquet. ``options``: of the source."""

    case: str
    seed: int
    directory: str
    namesrv: str
    topic: str
    mode: str
    target: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    @property
    def place(self) -> Path:
        return Path(self.directory)

    @property
    def checkpoint(self) -> Path:
        return self.place / "checkpoint"

    @property
    def out(self) -> Path:
        return self.place / "out"

    def save(self) -> None:
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / "run.json").write_text(self.to_json())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Run:
        data = json.loads(text)
        return cls(**{**data, "faults": tuple(Fault(**fault) for fault in data["faults"])})

    def note(self, event: str, **what: Any) -> None:
        """A line of the history; whole lines, whichever processes write at once."""
        line = json.dumps({"event": event, "at": round(time(), 3), **what}) + "\n"
        target = os.open(self.place / "history.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(target, line.encode())
        finally:
            os.close(target)

    def fail(self, error: str) -> None:
        """Notes what a query failed with; for a machine that is too busy the run is void."""
        self.note("void", why=error) if LATE in error else self.note("failed", error=error)

    def history(self, event: str | None = None) -> list[dict[str, Any]]:
        path = self.place / "history.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith(b"\n")]  # the last one may be half there
        return [each for each in events if event is None or each["event"] == event]

    def signal(self, name: str) -> None:
        (self.place / name).touch()

    def wait_signal(self, name: str) -> None:
        """Raises TimeoutError."""
        for _ in ticks(f"{self.case}: no process touched {name}"):
            if (self.place / name).exists():
                return

    def wait_event(self, event: str, count: int = 1, alive: Callable[[], bool] = lambda: True) -> None:
        """Raises TimeoutError, QueryFailedError when a query has failed, RuntimeError when the run is void or not ``alive``."""
        for _ in ticks(f"{self.case}: {event} did not come"):
            if len(self.history(event)) >= count:
                return
            if failures := self.history("failed"):
                raise QueryFailedError(failures[0]["error"])
            if reasons := self.history("void"):
                raise RuntimeError(reasons[0]["why"])
            if not alive():
                raise RuntimeError(f"{self.case}: ended before {event}")

    def state(self) -> dict[str, list[int]]:
        """Numbers of the micro-batches that the checkpoint and the file sink's own log hold."""
        logs = {
            "offsets": self.checkpoint / "offsets",
            "commits": self.checkpoint / "commits",
            "manifest": self.out / "_spark_metadata",
        }
        return {name: batches(path) for name, path in logs.items()}


def batches(log: Path) -> list[int]:
    names = [path.name.removesuffix(".compact") for path in log.iterdir()] if log.is_dir() else []
    return sorted(int(name) for name in names if name.isdigit())


def ticks(failure: str, limit: float = PATIENCE) -> Iterator[None]:
    """Steps of 20 ms; after ``limit`` seconds TimeoutError."""
    deadline = monotonic() + limit
    while monotonic() < deadline:
        yield
        sleep(0.02)
    raise TimeoutError(f"{failure} in {limit:.3g} s")
