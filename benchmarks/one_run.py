"""One measured run in a process of its own: ``python one_run.py SPEC`` (JSON) prints one line of JSON.

The worker loop is the same for both sides, and so is its cost: N coroutines that send, one message or one batch after the
other. Client CPU is user + system time of this whole process over the window, divided by the messages acknowledged in it. The
window ends by time or by count, whichever comes first; a poll each 20 ms looks, not the workers.
"""

from __future__ import annotations

import array
import asyncio
import gc
import os
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # PYTHONSAFEPATH leaves out a script's own directory
from bare_loop import BareProducer

__all__ = ["BATCH", "MODES", "Load", "Mode", "RunResult", "RunSpec", "measure", "result_of"]

BATCH: Final = 32
POLL: Final = 0.02
KEYS: Final = 1000
"""Of ``keyed`` modes, in turn."""
SAMPLED: Final = 8
"""From 64 workers on, latency is taken by every eighth."""
EDGE_PAUSE: Final = 0.1
"""Seconds that the load goes on after the window for one who watches from outside and looks a little later."""
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


BARE_METHODS: Final = {
    "send": "send", "keyed": "send", "async": "send", "adaptive": "send_adaptive", "batch": "send_batch", "oneway": "send_oneway"
}  # fmt: skip
"""Of the bare loop, which has no callbacks and no keys, by kind."""
METHODS: Final = {**BARE_METHODS, "async": "send_async", "adaptive": "send", "production": "send"}
"""Of our producer."""
SECRET_KEY: Final = "RMQ_SECRET_KEY"
"""Of the environment: other users of a machine see arguments."""


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


class Load(NamedTuple):
    """What a side brings: how to send one payload, how to make one, how many transport writes there have been."""

    send: Callable[..., Awaitable[Any]]
    payload: Callable[[], Any]
    writes: Callable[[], int]
    finish: Callable[[], Coroutine[Any, Any, None]]


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
        self.rss_mb = _peak_rss_mb()
        self.broker = _process_seconds(broker_pid) if broker_pid else None
        self.busy = _busy_seconds()


async def bare_load(spec: RunSpec) -> Load:
    producer = BareProducer(spec.topic)
    await producer.start(spec.namesrv)
    body = b"x" * spec.body
    kind = MODES[spec.mode].kind
    send = getattr(producer, BARE_METHODS[kind])
    payload = (lambda: [body] * BATCH) if kind == "batch" else (lambda: body)
    return Load(send, payload, lambda: producer.connection.writes, producer.stop)


async def our_load(spec: RunSpec) -> Load:
    """The public API as its users call it; the messages are built inside the measured loop."""
    from rmq_async import Credentials, Message, Producer  # here, so that the bare loop's process is as bare as its loop

    options: dict[str, Any] = {"batching": True} if MODES[spec.mode].kind == "adaptive" else {}
    if not spec.compress:
        options["compress_over"] = 1 << 31
    if spec.access_key:
        options["credentials"] = Credentials(spec.access_key, os.environ[SECRET_KEY])
    producer = Producer("benchmark", namesrv=spec.namesrv, **options)
    await producer.start()
    instance = producer._instance
    assert instance is not None
    pool = instance.pool
    topic, body = spec.topic, b"x" * spec.body
    kind = MODES[spec.mode].kind
    send = getattr(producer, METHODS[kind])
    if kind == "keyed":
        next_key = cycle([f"key-{number}" for number in range(KEYS)]).__next__
        send = lambda message: producer.send(message, key=next_key())  # noqa: E731
    payload = (lambda: [Message(topic, body) for _ in range(BATCH)]) if kind == "batch" else (lambda: Message(topic, body))
    if (carried := spec.attributes) is not None:
        payload = lambda: Message(topic, body, tags=carried.tags, keys=carried.keys, properties=carried.properties)  # noqa: E731
    return Load(send, payload, lambda: sum(connection.writes for connection in pool.connections), producer.stop)


LOADS: Final[dict[str, Callable[[RunSpec], Awaitable[Load]]]] = {"bare": bare_load, "ours": our_load}


async def worker(state: State, load: Load, messages: int, sampled: bool) -> None:
    send, payload, clock = load.send, load.payload, time.perf_counter
    while not state.stop:
        start = clock() if sampled else 0.0
        try:
            await send(payload())
        except Exception as error:  # noqa: BLE001 - any failure is counted by its text and printed
            state.failed(error, messages)
            await asyncio.sleep(0.01)
            continue
        state.count += messages
        if sampled and state.recording:
            state.latencies.append(clock() - start)


async def callbacks_worker(state: State, load: Load, depth: int) -> None:
    """One coroutine that keeps ``depth`` sends under way; callbacks count them."""
    send, payload, clock, loop = load.send, load.payload, time.perf_counter, asyncio.get_running_loop()
    under_way, number = 0, 0
    room: asyncio.Future[None] | None = None

    def over() -> None:
        nonlocal under_way, room
        under_way -= 1
        if room is not None:
            room.set_result(None)
            room = None

    def stored(_: object) -> None:
        state.count += 1
        over()

    def timed(start: float, _: object) -> None:
        if state.recording:
            state.latencies.append(clock() - start)
        stored(_)

    def failed(error: BaseException) -> None:
        state.failed(error, 1)
        over()

    while not state.stop or under_way:
        if under_way >= depth or state.stop:
            room = loop.create_future()
            await room
            continue
        under_way += 1
        number += 1
        try:
            await send(payload(), on_success=stored if number % SAMPLED else partial(timed, clock()), on_error=failed)
        except Exception as error:  # noqa: BLE001 - as above
            under_way -= 1
            state.failed(error, 1)
            await asyncio.sleep(0.01)


async def oneway_worker(state: State, load: Load) -> None:
    """One-way sends need not suspend; without a pause now and then nothing else would run."""
    send, payload = load.send, load.payload
    while not state.stop:
        try:
            for _ in range(64):
                await send(payload())
                state.count += 1
        except Exception as error:  # noqa: BLE001 - as above
            state.failed(error, 1)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)


async def measure(spec: RunSpec, load: Load) -> RunResult:
    """Warm-up, window, orderly end."""
    mode = MODES[spec.mode]
    state = State()
    if mode.kind == "oneway":
        tasks = [asyncio.ensure_future(oneway_worker(state, load))]
    elif mode.kind == "async" and spec.side == "ours":
        tasks = [asyncio.ensure_future(callbacks_worker(state, load, mode.workers))]
    else:
        messages = BATCH if mode.kind == "batch" else 1
        every = SAMPLED if mode.workers >= 64 else 1
        jobs = [worker(state, load, messages, number % every == 0) for number in range(mode.workers)]
        tasks = [asyncio.ensure_future(job) for job in jobs]
    await _until(state, spec.warm_up, spec.max_messages // 5)
    gc.collect()
    state.recording = True
    start = Mark(state.count, load.writes(), spec.broker_pid)
    if spec.edges:
        print("edge start", flush=True)
    await _until(state, spec.seconds, start.messages + spec.max_messages * 4 // 5)
    end = Mark(state.count, load.writes(), spec.broker_pid)
    state.recording = False
    if spec.edges:
        print("edge end", flush=True)
        await asyncio.sleep(EDGE_PAUSE)
    state.stop = True
    await asyncio.wait_for(asyncio.gather(*tasks), 15)
    await load.finish()
    return result_of(spec, state, start, end)


async def _until(state: State, seconds: float, count: int) -> None:
    deadline = time.perf_counter() + seconds
    while state.count < count and (left := deadline - time.perf_counter()) > 0:  # noqa: ASYNC110 - an Event would cost the workers
        await asyncio.sleep(min(POLL, left))


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


def _peak_rss_mb() -> float:
    """Most memory this program has had resident; ru_maxrss also counts what its parent had when it forked."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024


def _process_seconds(pid: int) -> float:
    """User and system time of another process, all its threads."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _busy_seconds() -> float:
    """Time all cores of this machine have worked, for anybody."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


async def run(spec: RunSpec) -> RunResult:
    return await measure(spec, await LOADS[spec.side](spec))


def run_on_loop(spec: RunSpec, job: Callable[[RunSpec], Coroutine[Any, Any, RunResult]] = run) -> RunResult:
    if spec.loop == "asyncio":
        return asyncio.run(job(spec))
    import uvloop

    return uvloop.run(job(spec))


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=RunSpec)
    if spec.side == "blocking":
        sys.modules.setdefault("one_run", sys.modules[__name__])
        from blocking_loop import run as run_blocking

        result = run_blocking(spec)
    else:
        result = run_on_loop(spec)
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")


if __name__ == "__main__":
    main()
