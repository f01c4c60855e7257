"""Where the time of one ``send`` goes, step by step: ``python benchmarks/steps.py``; no broker, no network.

The function itself is run, cut off after each of its steps, 64 calls between two turns of the loop, with frames written to
nowhere; a step costs what the cut after it takes longer than the cut before. Reading answers is timed by handing a connection 64
of them. The ways take turns, and the least of all rounds counts: what other processes do only ever adds. Sampling
(``profile_send.py``) cannot separate steps of 100 ns.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import logging
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

from rmq_async import Message, Producer, run
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.producer import fast_path as module
from rmq_async.transport.pending import Pending

AT_ONCE: Final = 64
FIRST: Final = 1_500_000_000
STEPS: Final = (
    # what a step is, and the line of ``Producer.send`` before which it is over
    ("coroutine, right loop and thread", "sender = self._sender"),
    ("is it a plain message", "started = machine.monotonic()"),
    ("clock, deadline, queues of the topic", "if topic_queues is None:"),
    ("credits, there and back", "if (gathering := topic_queues.gathering)"),
    ("next queue, its connection", "unique_id = sender.ids"),
    ("unique id", "future: asyncio.Future[SendReply]"),
    ("future", "opaque = next("),
    ("frame, entry in the table, gathering and writing", "reply = await future"),
)
ANSWER: Final = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion","msgId":"7F00000100002A9F000000000'
    b'0123456","queueOffset":"12345"},"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":513}'
)

Send = Callable[[Producer, Message], Awaitable[Any]]


class Nowhere:
    """A transport that takes everything."""

    def write(self, data: bytes) -> None: ...

    def writelines(self, parts: Sequence[bytes]) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Taker:
    """A receiver to which answers cost nothing."""

    def done(self) -> bool:
        return True


def cut(marker: str) -> Send:
    """``Producer.send``, which returns before the first line that holds ``marker``."""
    lines = textwrap.dedent(inspect.getsource(Producer.send)).split("\n")
    at = next(number for number, line in enumerate(lines) if marker in line)
    indent = len(lines[at]) - len(lines[at].lstrip())
    names = dict(vars(module))
    exec("from __future__ import annotations\n" + "\n".join([*lines[:at], " " * indent + "return None", *lines[at:]]), names)
    return names["send"]  # type: ignore[no-any-return]


async def measured(rounds: int) -> dict[str, float]:
    """Nanoseconds of each step."""
    async with EmbeddedRocketMQ() as server, Producer("steps", namesrv=server.namesrv) as producer:
        message = Message("Steps", b"x" * 128)
        await producer.send(message)
        topic_queues = producer._sender.queues_by_topic["Steps"]
        connection = producer._sender.connections[topic_queues.next().address]
        real, connection.requests.writer._transport = connection.requests.writer._transport, Nowhere()  # type: ignore[assignment]
        ways = [(name, cut(marker)) for name, marker in STEPS]
        best: dict[str, float] = {}
        for _ in range(rounds):
            for name, way in ways:
                start = time.perf_counter()
                for _ in range(AT_ONCE):
                    await way(producer, message)
                _keep(best, name, start)
                connection.requests.entries.clear()
                connection.requests.writer.frames.clear()
                await asyncio.sleep(0)
            start = time.perf_counter()
            for _ in range(AT_ONCE):
                Message("Steps", message.body)
            _keep(best, "Message", start)
            connection.requests.entries.update({opaque: _entry(opaque) for opaque in range(FIRST, FIRST + AT_ONCE)})
            answers = b"".join([_framed(ANSWER % opaque) for opaque in range(FIRST, FIRST + AT_ONCE)])
            start = time.perf_counter()
            connection.data_received(answers)
            _keep(best, "reading the answer", start)
        connection.requests.writer._transport = real
    names = [name for name, _ in STEPS]
    before = [0.0, *[best[name] for name in names[:-1]]]
    steps = {name: best[name] - less for name, less in zip(names, before, strict=True)}
    return {"making the Message": best["Message"], **steps, "reading the answer": best["reading the answer"]}


def _keep(best: dict[str, float], name: str, start: float) -> None:
    took = (time.perf_counter() - start) / AT_ONCE * 1e9
    best[name] = min(best.get(name, took), took)


def _entry(opaque: int) -> Pending:
    return Pending(Taker(), float("inf"), float("inf"), 310, None, 1, opaque)  # type: ignore[arg-type]


def _framed(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="steps.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="how often each way runs (default: 400)")
    parser.add_argument("--json", action="store_true", help="write nanoseconds by step as JSON")
    options = parser.parse_args(given)
    if options.rounds < 1:
        parser.error("--rounds must be above 0")
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # of a topic made by sending
    steps = run(measured(options.rounds))
    if options.json:
        print(msgspec.json.encode(steps).decode())
        return 0
    print("| step | ns |\n|---|---|")
    for name, nanoseconds in steps.items():
        print(f"| {name} | {nanoseconds:,.0f} |")
    print(f"| together | {sum(steps.values()):,.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
