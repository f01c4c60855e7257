"""One measured run in a process of its own: ``python one_run.py SPEC`` (JSON) prints one line of JSON.

The worker loop is the same for both sides, and so is its cost: N coroutines that send, one message or one batch after the
other. Client CPU is user + system time of this whole process over the window, divided by the messages acknowledged in it. The
window ends by time or by count, whichever comes first; a poll each 20 ms looks, not the workers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import cycle
from typing import Any, Final, NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the folder of the benchmarks
from support.bare_loop import BareProducer
from support.runs import BATCH, KEYS, MODES, SECRET_KEY, Mark, RunResult, RunSpec, State, on_loop, result_of, until

__all__ = ["BARE_METHODS", "Load", "bare_load", "measure", "run_on_loop"]

SAMPLED: Final = 8
"""From 64 workers on, latency is taken by every eighth."""
EDGE_PAUSE: Final = 0.1
"""Seconds that the load goes on after the window for one who watches from outside and looks a little later."""

BARE_METHODS: Final = {
    "send": "send", "keyed": "send", "async": "send", "adaptive": "send_adaptive", "batch": "send_batch", "oneway": "send_oneway"
}  # fmt: skip
"""Of the bare loop, which has no callbacks and no keys, by kind."""
METHODS: Final = {**BARE_METHODS, "async": "send_async", "adaptive": "send", "production": "send"}
"""Of our producer."""


class Load(NamedTuple):
    """What a side brings: how to send one payload, how to make one, how many transport writes there have been."""

    send: Callable[..., Awaitable[Any]]
    payload: Callable[[], Any]
    writes: Callable[[], int]
    finish: Callable[[], Coroutine[Any, Any, None]]


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
    instance = producer._instance  # noqa: SLF001 - no public value counts writes to sockets
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
    await until(state, spec.warm_up, spec.max_messages // 5)
    gc.collect()
    state.recording = True
    start = Mark(state.count, load.writes(), spec.broker_pid)
    if spec.edges:
        print("edge start", flush=True)
    await until(state, spec.seconds, start.messages + spec.max_messages * 4 // 5)
    end = Mark(state.count, load.writes(), spec.broker_pid)
    state.recording = False
    if spec.edges:
        print("edge end", flush=True)
        await asyncio.sleep(EDGE_PAUSE)
    state.stop = True
    await asyncio.wait_for(asyncio.gather(*tasks), 15)
    await load.finish()
    return result_of(spec, state, start, end)


async def run(spec: RunSpec) -> RunResult:
    return await measure(spec, await LOADS[spec.side](spec))


def run_on_loop(spec: RunSpec, job: Callable[[RunSpec], Coroutine[Any, Any, RunResult]] = run) -> RunResult:
    return on_loop(spec.loop, job(spec))


def main() -> None:
    spec = msgspec.json.decode(sys.argv[1], type=RunSpec)
    sys.stdout.buffer.write(msgspec.json.encode(run_on_loop(spec)) + b"\n")


if __name__ == "__main__":
    main()
