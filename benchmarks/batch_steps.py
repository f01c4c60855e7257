"""Where the time of one message of a batch goes: ``python benchmarks/batch_steps.py``; no broker, no network.

64 sends of messages as services send them (1 KiB, tags, a key, two properties, signed) are there together, and leave as one batch.
Each step is timed by itself for all 64, and then the whole, whose request is answered in the next turn of the loop; what is left
of the whole is the rest. The ways take turns, and the least of all rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, Final

import msgspec

from rmq_async import Credentials, Message, Producer, run
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer.async_path import batch_item
from rmq_async.transport.pending import Pending
from rmq_protocol.send_codec import FIRST_OPAQUE

AT_ONCE: Final = 64
IN_TURN: Final = 8
"""Sends of each task, one after the other, where the whole is timed."""
WAITS: Final = "tasks that wait for futures"
BODY: Final = b"x" * 1024
PROPERTIES: Final = {"shop": "eu-west-1", "schema": "orders/3"}
USER: Final = Credentials("alice", "her password")
OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
QUEUE: Final = re.compile(rb'"e":"(\d+)"')
BORN: Final = b"1700000000000"
ANSWER: Final = (
    b'{"code":0,"extFields":{"queueId":"%b","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"%b","queueOffset":"12345"},'
    b'"flag":1,"language":"JAVA","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":513}'
)
OFFSET_IDS: Final = b",".join([b"7F00000100002A9F0000000000123456"] * AT_ONCE)


class Answering:
    """A transport that takes everything; a batch is answered in the next turn of the loop."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._transport = connection.requests.writer._transport

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: Sequence[bytes]) -> None:
        answer = answer_to(parts[0])
        self._loop.call_soon(lambda: self._connection.data_received(answer))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def answer_to(head: bytes) -> bytes:
    opaque, queue = OPAQUE.search(head), QUEUE.search(head)
    assert opaque is not None
    assert queue is not None
    header = ANSWER % (queue[1], OFFSET_IDS, opaque[1])
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def made() -> Message:
    return Message("Steps", BODY, tags="paid", keys="order-17", properties=PROPERTIES)


async def measured(rounds: int) -> dict[str, float]:
    """Microseconds of each step for one message."""
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        start = time.perf_counter()
        work()
        _keep(best, name, start)

    options: dict[str, Any] = {"batching": True, "credentials": USER}
    async with EmbeddedRocketMQ() as server, Producer("steps", namesrv=server.namesrv, **options) as producer:
        message = made()
        await producer.send(message)
        core = producer._sender
        target = core.queues_by_topic["Steps"].next()
        connection = core.connections[target.address]
        items = [batch_item(core, message, len(BODY))[0] for _ in range(AT_ONCE)]
        batch = core.encoder.batch_of(items, None, plain=False)
        answer = answer_to(target.batch.parts(FIRST_OPAQUE, BORN, batch.properties, batch.body)[0])  # type: ignore[arg-type]
        real, connection.requests.writer._transport = connection.requests.writer._transport, Answering(connection)  # type: ignore[assignment]
        for _ in range(rounds):
            timed("making the Message", lambda: [made() for _ in range(AT_ONCE)])
            timed("properties, size in a batch", lambda: [batch_item(core, message, len(BODY)) for _ in range(AT_ONCE)])
            timed("ids, body of the batch", lambda: core.encoder.batch_of(items, None, plain=False))
            timed("signature, frame", lambda: target.batch.parts(FIRST_OPAQUE, BORN, batch.properties, batch.body))
            connection.requests.entries[FIRST_OPAQUE] = Pending(_Taker(), inf, inf, 320, None, 1, FIRST_OPAQUE)
            timed("reading the answer", partial(connection.data_received, answer))
            start = time.perf_counter()
            await wait_only()
            _keep(best, WAITS, start, IN_TURN)
            start = time.perf_counter()
            await asyncio.gather(*[sending(producer) for _ in range(AT_ONCE)])
            _keep(best, "together", start, IN_TURN)
        connection.requests.writer._transport = real
    together = best.pop("together")
    return {**best, "the rest: send itself, results": together - sum(best.values())}


async def sending(producer: Producer) -> None:
    for _ in range(IN_TURN):
        await producer.send(made())


async def wait_only() -> None:
    """What asyncio itself takes: as many tasks each wait for a future, and all are resolved in the next turn of the loop."""
    loop, waiting = asyncio.get_running_loop(), list[asyncio.Future[None]]()

    def resolve() -> None:
        futures = waiting.copy()
        waiting.clear()
        for future in futures:
            future.set_result(None)

    async def wait() -> None:
        for _ in range(IN_TURN):
            future = loop.create_future()
            if not waiting:
                loop.call_soon(resolve)
            waiting.append(future)
            await future

    await asyncio.gather(*[wait() for _ in range(AT_ONCE)])


class _Taker:
    """A receiver for which an answer costs nothing."""

    def done(self) -> bool:
        return True


def _keep(best: dict[str, float], name: str, start: float, times: int = 1) -> None:
    took = (time.perf_counter() - start) / (times * AT_ONCE) * 1e6
    best[name] = min(best.get(name, took), took)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="batch_steps.py", description=__doc__)
    parser.add_argument("--rounds", type=int, default=400, help="how often each way runs (default: 400)")
    parser.add_argument("--json", action="store_true", help="write microseconds by step as JSON")
    options = parser.parse_args(given)
    if options.rounds < 1:
        parser.error("--rounds must be above 0")
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # of a topic made by sending
    steps = run(measured(options.rounds))
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
