"""One run of ``scale.py`` in a process of its own: ``python support/scale_client.py SPEC`` (JSON) prints one line of JSON.

``rate``: coroutines that await sends. ``pile``: the server is stopped (SIGSTOP), so many ``send_async`` are accepted, and resident
memory before and after is compared; then it goes on, and all of them must be answered.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from array import array
from functools import partial
from typing import Any, Final

import msgspec
import uvloop

from rmq_async import Message, Producer

SAMPLED: Final = 8
POLL: Final = 0.02
PILE_TIMEOUT: Final = 120.0


class ScaleSpec(msgspec.Struct, kw_only=True, frozen=True):
    """``server_pid``: of the server, to stop and go on."""

    kind: str
    namesrv: str
    topic: str
    in_flight: int = 64
    body: int = 128
    seconds: float = 2.0
    max_messages: int = 1 << 40
    server_pid: int | None = None
    callbacks: bool = False


class ScaleResult(msgspec.Struct, kw_only=True):
    """Times in milliseconds (``_ms``) or microseconds (``_us``); ``rss_mb``: the most there was. ``bytes_each``: resident
    memory per ``send_async`` in flight beside its body."""

    messages: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    client_us: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    rss_mb: float = 0.0
    bytes_each: float | None = None
    failures: dict[str, int] = {}


def memory(name: str) -> int:
    """Bytes; ``name``: VmRSS for now, VmHWM for the most there ever was."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024


def count_failure(failures: dict[str, int], error: BaseException) -> None:
    text = f"{type(error).__name__}: {error}"[:160]
    failures[text] = failures.get(text, 0) + 1


async def rate(spec: ScaleSpec) -> ScaleResult:
    body = os.urandom(spec.body)
    failures: dict[str, int] = {}
    latencies = array("d")
    count, stop, recording = 0, False, False

    async def work(number: int) -> None:
        nonlocal count
        timed = number % SAMPLED == 0
        while not stop:
            began = time.perf_counter()
            try:
                await producer.send(Message(spec.topic, body))
            except Exception as error:  # noqa: BLE001 - counted by its text and reported
                count_failure(failures, error)
                await asyncio.sleep(0.01)
                continue
            count += 1
            if timed and recording:
                latencies.append(time.perf_counter() - began)

    async def until(number: int, seconds: float) -> None:
        deadline = time.perf_counter() + seconds
        while count < number and time.perf_counter() < deadline:  # noqa: ASYNC110 - an Event would cost the workers
            await asyncio.sleep(POLL)

    async with Producer("scale", namesrv=spec.namesrv, timeout=30, compress_over=spec.body + 1) as producer:
        await producer.send(Message(spec.topic, body))
        workers = [asyncio.ensure_future(work(number)) for number in range(spec.in_flight)]
        await until(spec.max_messages // 4, spec.seconds / 4)
        gc.collect()
        recording, before, began, cpu = True, count, time.perf_counter(), time.process_time()
        await until(before + spec.max_messages * 3 // 4, spec.seconds)
        messages, seconds, cpu = count - before, time.perf_counter() - began, time.process_time() - cpu
        recording, stop = False, True
        await asyncio.gather(*workers)
    ordered = sorted(latencies)
    at = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3 if ordered else None for share in (0.5, 0.99)]
    return ScaleResult(
        messages=messages, acknowledged=count + 1, seconds=seconds, rate=messages / seconds,
        client_us=cpu * 1e6 / max(messages, 1), p50_ms=at[0], p99_ms=at[1], rss_mb=memory("VmHWM") / 2**20, failures=failures,
    )  # fmt: skip


async def pile(spec: ScaleSpec) -> ScaleResult:
    assert spec.server_pid is not None
    number, body = spec.in_flight, b"x" * spec.body
    failures: dict[str, int] = {}
    answered = 0

    def stored(_: object) -> None:
        nonlocal answered
        answered += 1

    failed = partial(count_failure, failures)
    producer = Producer(
        "scale", namesrv=spec.namesrv, timeout=PILE_TIMEOUT, broker_window=number, async_limit=number,
        pending_bytes_limit=max(100 << 20, 2 * number * spec.body),
    )  # fmt: skip
    callbacks: dict[str, Any] = {"on_success": stored, "on_error": failed} if spec.callbacks else {}
    async with producer:
        for _ in range(200):
            await producer.send(Message(spec.topic, body))
        futures: list[asyncio.Future[Any]] = []
        gc.collect()
        before = memory("VmRSS")
        os.kill(spec.server_pid, signal.SIGSTOP)
        try:
            for _ in range(number):
                future = await producer.send_async(Message(spec.topic, body), **callbacks)
                if not spec.callbacks:
                    futures.append(future)
            del future
            gc.collect()
            each = (memory("VmRSS") - before) / number - spec.body
        finally:
            os.kill(spec.server_pid, signal.SIGCONT)
        for one in futures:
            try:
                await one
            except Exception as error:  # noqa: BLE001 - counted by its text and reported
                failed(error)
            else:
                stored(None)
        await producer.flush()
    return ScaleResult(
        messages=number, acknowledged=answered, bytes_each=each, rss_mb=memory("VmHWM") / 2**20, failures=failures
    )  # fmt: skip


JOBS: Final = {"rate": rate, "pile": pile}

if __name__ == "__main__":
    given = msgspec.json.decode(sys.argv[1], type=ScaleSpec)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(JOBS[given.kind](given))) + b"\n")
