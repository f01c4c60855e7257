"""What a measured run is made of: its settings, its counters at both ends of the window, and its figures.

Client CPU is user + system time of the whole process over the window, divided by the messages acknowledged in it.
"""

from __future__ import annotations

import array
import asyncio
import os
import resource
import time
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

__all__ = [
    "BATCH",
    "KEYS",
    "MODES",
    "SECRET_KEY",
    "Attributes",
    "Mark",
    "Mode",
    "RunResult",
    "RunSpec",
    "State",
    "busy_seconds",
    "on_loop",
    "peak_rss_mb",
    "process_seconds",
    "result_of",
    "until",
]

BATCH: Final = 32
POLL: Final = 0.02
KEYS: Final = 1000
"""Of ``keyed`` modes, in turn."""
SECRET_KEY: Final = "RMQ_SECRET_KEY"
"""Of the environment: other users of a machine see arguments."""
T = TypeVar("T")
_TICKS: Final = os.sysconf("SC_CLK_TCK")


class Mode(NamedTuple):
    """``weight``: its share of the bytes a whole benchmark may write."""

    workers: int
    kind: str
    weight: int
    title: str


MODES: Final = {
    "depth-1": Mode(1, "send", 1, "await send, 1 in flight"),
    "depth-64": Mode(64, "send", 4, "await send, 64 in flight"),
    "depth-1024": Mode(1024, "send", 6, "await send, 1024 in flight"),
    "async-64": Mode(64, "async", 4, "send_async with callbacks, 64 in flight"),
    "async-1024": Mode(1024, "async", 6, "send_async with callbacks, 1024 in flight"),
    "keyed-64": Mode(64, "keyed", 4, f"await send with a key, 64 in flight over {KEYS:,} keys"),
    "adaptive-1": Mode(1, "adaptive", 1, "await send, batching=True, 1 in flight"),
    "adaptive-64": Mode(64, "adaptive", 10, "await send, batching=True, 64 in flight"),
    "adaptive-1024": Mode(1024, "adaptive", 14, "await send, batching=True, 1024 in flight"),
    "batch-1": Mode(1, "batch", 8, f"batches of {BATCH}, one at a time"),
    "batch-8": Mode(8, "batch", 10, f"batches of {BATCH}, eight at a time"),
    "oneway": Mode(1, "oneway", 4, "one-way, as fast as it goes"),
    "production-64": Mode(64, "production", 4, "await send of production messages, 64 in flight"),
}


class Attributes(msgspec.Struct, frozen=True):
    """What a message carries beside its body."""

    tags: str
    keys: str
    properties: dict[str, str]


class RunSpec(msgspec.Struct, kw_only=True, frozen=True):
    side: str
    mode: str
    namesrv: str
    topic: str
    body: int
    seconds: float
    warm_up: float
    max_messages: int
    loop: str = "uvloop"
    compress: bool = True
    broker_pid: int | None = None
    edges: bool = False
    """Whether a line says when the window begins and ends, for one who watches from outside."""
    attributes: Attributes | None = None
    """Of production messages."""
    access_key: str = ""
    """With one requests are signed; the secret is in the environment."""


class RunResult(msgspec.Struct, kw_only=True):
    """Times in microseconds (``_us``) or seconds. ``total``: messages acknowledged (one-way: sent) in the whole run."""

    side: str
    mode: str
    messages: int
    seconds: float
    rate: float
    client_us: float
    client_user_us: float
    broker_us: float | None
    p50_us: float | None
    p99_us: float | None
    p999_us: float | None
    max_us: float | None
    messages_per_write: float | None
    rss_mb: float
    client_cores: float
    broker_cores: float | None
    busy_cores: float
    total: int
    failures: dict[str, int]
    thread_us: float = 0.0
    """Of the loop's thread alone."""
    before: int = 0
    stored: int | None = None


class State:
    """What the workers share."""

    __slots__ = ("count", "failures", "latencies", "recording", "stop")

    def __init__(self) -> None:
        self.count = 0
        self.stop = False
        self.recording = False
        self.latencies = array.array("d")
        self.failures: dict[str, int] = {}

    def failed(self, error: BaseException, messages: int) -> None:
        name = f"{type(error).__name__}: {error}"[:160]
        self.failures[name] = self.failures.get(name, 0) + messages


class Mark:
    """Counters at one end of the window."""

    def __init__(self, messages: int, writes: int, broker_pid: int | None) -> None:
        self.messages = messages
        self.writes = writes
        self.time = time.perf_counter()
        self.cpu = time.process_time()
        self.thread = time.thread_time()
        self.user = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        self.rss_mb = peak_rss_mb()
        self.broker = process_seconds(broker_pid) if broker_pid else None
        self.busy = busy_seconds()


async def until(state: State, seconds: float, count: int) -> None:
    deadline = time.perf_counter() + seconds
    while state.count < count and (left := deadline - time.perf_counter()) > 0:  # noqa: ASYNC110 - an Event would cost the workers
        await asyncio.sleep(min(POLL, left))


def on_loop(name: str, job: Coroutine[Any, Any, T]) -> T:
    """Runs ``job`` on a new event loop, of "asyncio" or "uvloop"."""
    if name == "asyncio":
        return asyncio.run(job)
    import uvloop

    return uvloop.run(job)


def result_of(spec: RunSpec, state: State, start: Mark, end: Mark) -> RunResult:
    messages, seconds = end.messages - start.messages, end.time - start.time
    per = 1e6 / max(messages, 1)
    broker = None if start.broker is None or end.broker is None else end.broker - start.broker
    writes = end.writes - start.writes
    latencies = sorted(state.latencies)

    def quantile(share: float) -> float | None:
        return latencies[min(len(latencies) - 1, int(len(latencies) * share))] * 1e6 if latencies else None

    return RunResult(
        side=spec.side,
        mode=spec.mode,
        messages=messages,
        seconds=seconds,
        rate=messages / seconds,
        client_us=(end.cpu - start.cpu) * per,
        thread_us=(end.thread - start.thread) * per,
        client_user_us=(end.user - start.user) * per,
        broker_us=None if broker is None else broker * per,
        p50_us=quantile(0.5),
        p99_us=quantile(0.99),
        p999_us=quantile(0.999),
        max_us=quantile(1.0),
        messages_per_write=messages / writes if writes > 0 else None,
        rss_mb=end.rss_mb,
        client_cores=(end.cpu - start.cpu) / seconds,
        broker_cores=None if broker is None else broker / seconds,
        busy_cores=(end.busy - start.busy) / seconds,
        total=state.count,
        failures=state.failures,
    )


def peak_rss_mb() -> float:
    """Most memory this program has had resident; ru_maxrss also counts what its parent had when it forked."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def process_seconds(pid: int) -> float:
    """User and system time of another process, all its threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def busy_seconds() -> float:
    """Time all cores of this machine have worked, for anybody."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS
