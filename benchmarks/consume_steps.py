"""Where the time of one consumed message goes: ``python benchmarks/consume_steps.py``; no broker, no network.

A member of a group reads eight queues of 512 messages from a transport that answers each pull in the next turn of the loop with
the next 32 messages, and an empty coroutine handles them. Some steps are timed by themselves as well; what is left of the whole is
the rest. Time is CPU time of the thread; the ways take turns, and the least of all rounds counts. ``--profile`` prints how often
each function runs for a message, and its share of the whole, by cProfile.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import logging
import pstats
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Final

import msgspec
import uvloop

from rmq_async import Admin, Consumer, MessageExt
from rmq_async.consumer.intake import Intake
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.results import PullResult, PullStatus
from rmq_protocol.message import MessageQueue
from rmq_protocol.stored import decode_pull, encode_stored

TOPIC: Final = "Steps"
QUEUES, PULLED, PULLS = 8, 32, 16
MESSAGES: Final = QUEUES * PULLED * PULLS
PULL: Final = re.compile(rb'"code":11[,}].*"Steps"|"Steps".*"code":11[,}]')
FIELDS: Final = {name: re.compile(rb'"%s":"?(\d+)' % name) for name in (b"opaque", b"queueId", b"queueOffset")}
HEADER: Final = (
    b'{"code":0,"extFields":{"suggestWhichBrokerId":"0","nextBeginOffset":"%d","minOffset":"0","maxOffset":"%d"},'
    b'"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":513}'
)
PROPERTIES: Final = b"UNIQ_KEY\x017F00000100002A9F00000000%08X\x02WAIT\x01true\x02TAGS\x01paid\x02KEYS\x01order-17\x02"


def body(queue_id: int, first: int) -> bytes:
    """Returns the records of one pull."""
    return b"".join(
        encode_stored(
            topic=TOPIC, body=b"x" * 128, queue_id=queue_id, queue_offset=offset,
            properties=PROPERTIES % (queue_id << 16 | offset),
        )
        for offset in range(first, first + PULLED)
    )  # fmt: skip


class Answering:
    """A transport that answers pulls in the next turn of the loop; those of the end of a queue it holds, the rest it passes on."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._transport = connection.requests.writer._transport
        self._bodies = {(each, pull * PULLED): body(each, pull * PULLED) for each in range(QUEUES) for pull in range(PULLS)}

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: Sequence[bytes]) -> None:
        for frame in frames(b"".join(parts)):
            if PULL.search(frame) is None:
                self._transport.write(frame)
                continue
            opaque, queue_id, offset = (int(found[1]) for name in FIELDS if (found := FIELDS[name].search(frame)) is not None)
            answer = self._bodies.get((queue_id, offset))
            if answer is not None:
                header = HEADER % (offset + PULLED, PULLED * PULLS, opaque)
                size = (len(header) + len(answer) + 4).to_bytes(4, "big")
                data = b"".join((size, len(header).to_bytes(4, "big"), header, answer))
                self._loop.call_soon(self._connection.data_received, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def frames(data: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(data):
        end = position + 4 + int.from_bytes(data[position : position + 4], "big")
        found.append(data[position:end])
        position = end
    return found


class Whole:
    """The member, and its runs over the whole topic."""

    def __init__(self, namesrv: str, timeout: float | None) -> None:
        self.consumer = Consumer("steps", namesrv=namesrv, start_from="latest")
        self.consumer.subscribe(TOPIC, self._handle, timeout=timeout)
        self._count = 0
        self._over = asyncio.Event()

    async def _handle(self, message: MessageExt) -> None:
        self._count += 1
        if self._count == MESSAGES:
            self._over.set()

    async def prepare(self) -> None:
        """Waits until the last calls are over, and moves all queues to their beginning."""
        self.consumer.pause()
        for queue in sorted(self.consumer.assignment):
            if queue.topic == TOPIC:
                await self.consumer.seek(queue, 0)
        self._count = 0
        self._over.clear()
        gc.collect()

    async def run(self) -> None:
        self.consumer.resume()
        await self._over.wait()


async def tasks_only(message: MessageExt) -> None:
    """What asyncio itself takes: a task for each message, in a copy of a context, 64 at a time."""
    loop, context = asyncio.get_running_loop(), copy_context()

    async def handle(message: MessageExt) -> None: ...

    for _ in range(MESSAGES // 64):
        for _ in range(64):
            loop.create_task(handle(message), context=context.copy())
        await asyncio.sleep(0)


def intake(whole: Whole) -> Callable[[], None]:
    """Puts the messages of one pull into the buffer of a queue and out of it again."""
    session = whole.consumer._session
    assert session is not None
    room: Intake = session.intake
    held = next(each for each in session.assignment.held.values() if each.subscription is not None)
    messages = decode_pull(body(held.queue.queue_id, 0), held.queue).messages

    def once() -> None:
        held.restart(0)
        room.accept(held, PullResult(PullStatus.FOUND, messages, PULLED, 0, PULLED, (), ()))
        room.withdraw_waiting(held)

    return once


async def measured(rounds: int, timeout: float | None = 900.0) -> dict[str, float]:
    """Returns the microseconds of each step for one message."""
    best: dict[str, float] = {}

    def keep(name: str, start: float, messages: int = MESSAGES) -> None:
        took = (time.thread_time() - start) / messages * 1e6
        best[name] = min(best.get(name, took), took)

    async with EmbeddedRocketMQ() as server:
        await a_topic(server.namesrv)
        whole = Whole(server.namesrv, timeout)
        async with whole.consumer:
            real, writer = answering(whole.consumer)
            await whole.prepare()
            records, queue = body(0, 0), MessageQueue(TOPIC, "broker-a", 0)
            message = decode_pull(records, queue).messages[0]
            buffered = intake(whole)
            for _ in range(rounds):
                start = time.thread_time()
                for _ in range(PULLS):
                    decode_pull(records, queue, only_queue=True, allow_partial=True)
                keep("decoding the records", start, PULLED * PULLS)
                start = time.thread_time()
                for _ in range(PULLS):
                    buffered()
                keep("into the buffer of the queue, and out of it", start, PULLED * PULLS)
                start = time.thread_time()
                await tasks_only(message)
                keep("a task in a context of its own (asyncio itself)", start)
                await whole.prepare()
                start = time.thread_time()
                await whole.run()
                keep("together", start)
            writer._transport = real
    together = best.pop("together")
    return {**best, "the rest: pulls, slots, calls, outcomes": together - sum(best.values())}


async def a_topic(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


def answering(consumer: Consumer) -> tuple[Any, Any]:
    """Gives the connection to the broker the transport that answers; returns its own, and the writer that has it."""
    session = consumer._session
    assert session is not None
    instance = session.instance
    connection = instance.plain_connection(instance.routes.broker_of(next(iter(consumer.assignment))))
    writer: Any = connection.requests.writer  # type: ignore[union-attr]
    real, writer._transport = writer._transport, Answering(connection)
    return real, writer


async def profiled(rounds: int) -> pstats.Stats:
    profile = cProfile.Profile()
    async with EmbeddedRocketMQ() as server:
        await a_topic(server.namesrv)
        whole = Whole(server.namesrv, 900.0)
        async with whole.consumer:
            real, writer = answering(whole.consumer)
            for _ in range(rounds):
                await whole.prepare()
                profile.enable()
                await whole.run()
                profile.disable()
            writer._transport = real
    return pstats.Stats(profile)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="consume_steps.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="how often each way runs (default: 100)")
    parser.add_argument("--json", action="store_true", help="write microseconds by step as JSON")
    parser.add_argument("--profile", action="store_true", help="print functions by their own time instead")
    options = parser.parse_args(given)
    if options.rounds < 1:
        parser.error("--rounds must be above 0")
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # of queues that go on elsewhere
    if options.profile:
        found = uvloop.run(profiled(options.rounds))
        rows = sorted(found.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
        total = sum(row[2] for _, row in rows)
        print("runs a message   own time   function")
        for (file, line, name), (_, calls, own, _, _) in rows[:50]:
            place = f"{file.rpartition('/')[2]}:{line}:" if line else ""
            print(f"{calls / options.rounds / MESSAGES:14.2f} {100 * own / total:8.1f} %   {place}{name}")
        return 0
    steps = uvloop.run(measured(options.rounds))
    if options.json:
        print(msgspec.json.encode(steps).decode())
        return 0
    print("| step | us a message |\n|---|---|")
    for name, microseconds in steps.items():
        print(f"| {name} | {microseconds:.2f} |")
    print(f"| together | {sum(steps.values()):.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
