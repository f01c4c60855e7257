"""One run of ours for consume.py, in a process of its own.

``python support/one_consume.py LOOP plain|service|pop|latency NAMESRV TOPIC TAGS MESSAGES MORE BROKER_PID`` does what the
program of the official client does (peers/java_consume, Consume.java), with ``Consumer`` and its defaults, of pop with
``mode="pop"``. ``python support/one_consume.py LOOP send NAMESRV TOPIC BODY RATE UNMEASURED MESSAGES`` sends messages one after
the other, RATE a second; those after the first UNMEASURED begin with the time of their send: nanoseconds of the machine's
monotonic clock, 8 bytes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from typing import Any, Final, Literal, NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # the folder of the benchmarks
from rmq_async import Consumer, Message, MessageExt, Producer
from support.runs import on_loop, peak_rss_mb, process_seconds

PATIENCE: Final = 60.0
"""Seconds for all messages of a run."""
SETTLES: Final = 0.3
"""Seconds after the last message in which one that is handled twice would come."""


class Edge(NamedTuple):
    """Counters at one end of what is measured."""

    time: float
    cpu: float
    broker: float | None

    @classmethod
    def now(cls, broker: int) -> Edge:
        return cls(time.perf_counter(), time.process_time(), process_seconds(broker) if broker else None)


def figures(messages: int, size: int, start: Edge, end: Edge) -> dict[str, float | None]:
    return {
        "messages": messages,
        "bytes": size,
        "seconds": end.time - start.time,
        "client_seconds": end.cpu - start.cpu,
        "broker_seconds": None if end.broker is None or start.broker is None else end.broker - start.broker,
        "rss_mb": peak_rss_mb(),
    }


def consumer(namesrv: str, mode: Literal["pull", "pop"] = "pull") -> Consumer:
    return Consumer(f"benchmark-consume-{time.monotonic_ns()}", namesrv=namesrv, start_from="earliest", mode=mode)


async def read(kind: str, namesrv: str, topic: str, tags: str, messages: int, broker: int) -> dict[str, float | None]:
    """Has a new group handle the whole topic; measured from its first message to its last; of pop, to the last acknowledgement."""
    count = size = 0
    edges: list[Edge] = []
    over = asyncio.Event()

    async def counts(message: MessageExt) -> None:
        nonlocal count, size
        size += len(message.body)
        count += 1
        if count == 1 or count == messages:
            edges.append(Edge.now(broker))
            if count == messages:
                over.set()

    async def reads(message: MessageExt) -> None:
        if message.tags is None or message.keys is None or message.properties.get("shop") is None:
            raise ValueError(f"message {message.msg_id} has not what was sent with it")
        await counts(message)

    group = consumer(namesrv, "pop" if kind == "pop" else "pull")
    group.subscribe(topic, reads if kind == "service" else counts, tags=tags)
    async with group:
        try:
            async with asyncio.timeout(PATIENCE):
                await over.wait()
                if kind == "pop":
                    await group.commit()  # returns when the broker has answered each acknowledgement
                    edges[1] = Edge.now(broker)
        except TimeoutError:
            raise RuntimeError(f"{count} of {messages} messages came") from None
        await asyncio.sleep(SETTLES)
        acknowledged = {"acknowledged": group.stats().commits} if kind == "pop" else {}
    return figures(count, size, *edges) | acknowledged


async def latency(namesrv: str, topic: str, tags: str, backlog: int, expected: int, broker: int) -> dict[str, float | None]:
    """Prints "ready" after the ``backlog``; returns the delays of ``expected`` messages that are sent afterwards."""
    clock, since, count = time.monotonic_ns, time.monotonic_ns(), 0
    delays: list[int] = []
    ready, over = asyncio.Event(), asyncio.Event()

    async def handle(message: MessageExt) -> None:
        nonlocal count
        now = clock()
        sent = int.from_bytes(message.body[:8], "big")
        count += 1
        if count == backlog:
            ready.set()
        if sent > since:
            delays.append(now - sent)
            if len(delays) == expected:
                over.set()

    group = consumer(namesrv)
    group.subscribe(topic, handle, tags=tags)
    async with group:
        try:
            async with asyncio.timeout(PATIENCE):
                await ready.wait()
            await asyncio.sleep(0.5)
            gc.collect()
            start = Edge.now(broker)
            print("ready", flush=True)
            async with asyncio.timeout(PATIENCE):
                await over.wait()
        except TimeoutError:
            raise RuntimeError(f"{count} messages came, {len(delays)} with a time") from None
        end = Edge.now(broker)
        await asyncio.sleep(SETTLES)
    delays.sort()
    found = figures(len(delays), 0, start, end)
    return found | {"p50_ms": delays[len(delays) // 2] / 1e6, "p99_ms": delays[int(len(delays) * 0.99)] / 1e6}


async def send(namesrv: str, topic: str, body: int, rate: float, unmeasured: int, messages: int) -> dict[str, float | None]:
    padding = bytes(body - 8)
    async with Producer("benchmark-consume", namesrv=namesrv) as producer:
        start, begun = Edge.now(0), time.monotonic()
        for number in range(unmeasured + messages):
            await asyncio.sleep(max(begun + number / rate - time.monotonic(), 0.0))
            sent = 0 if number < unmeasured else time.monotonic_ns()
            await producer.send(Message(topic, sent.to_bytes(8, "big") + padding))
    return figures(messages, messages * body, start, Edge.now(0))


async def run(kind: str, namesrv: str, topic: str, *given: str) -> dict[str, float | None]:
    if kind == "send":
        body, rate, unmeasured, messages = given
        return await send(namesrv, topic, int(body), float(rate), int(unmeasured), int(messages))
    tags, *numbers = given
    messages, more, broker = map(int, numbers)
    if kind == "latency":
        return await latency(namesrv, topic, tags, messages, more, broker)
    for _ in range(more):
        await read(kind, namesrv, topic, tags, messages, broker)
    gc.collect()
    return await read(kind, namesrv, topic, tags, messages, broker)


if __name__ == "__main__":
    loop, *arguments = sys.argv[1:]
    result: Any = on_loop(loop, run(*arguments))
    print(msgspec.json.encode(result).decode(), flush=True)
