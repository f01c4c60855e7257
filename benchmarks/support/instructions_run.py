"""One run for ``instructions.py``: sends MESSAGES to a canned peer at PORT, under clocks that each reading moves by 4 us.

``python instructions_run.py PORT KIND MESSAGES [bytecodes]``. With ``bytecodes`` it prints, as JSON, how many bytecodes of each
function ran per message; without, it prints nothing: the caller counts what the processor does.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, Final

import msgspec

# Before the library is imported: versions of it may keep the functions. Real clocks would have it turn its pages of unique ids, and
# format the millisecond, more often the slower the run is.
TICK: Final = 4e-6
time.time = itertools.count(time.time(), TICK).__next__
time.monotonic = itertools.count(time.monotonic(), TICK).__next__

from rmq_async import Hook, Message, Producer, SendContext, run  # noqa: E402

AT_ONCE: Final = 64
BATCH: Final = 32
REAL: Final = {"tags": "paid", "keys": "order-1", "properties": {"source": "web", "version": "2"}}


async def sends(producer: Producer, count: int, size: int, **fields: Any) -> None:
    body = b"x" * size

    async def worker() -> None:
        for _ in range(count // AT_ONCE):
            await producer.send(Message("Instructions", body, **fields))

    await asyncio.gather(*[worker() for _ in range(AT_ONCE)])


async def batches(producer: Producer, count: int) -> None:
    body = b"x" * 128
    for _ in range(count // BATCH):
        await producer.send_batch([Message("Instructions", body) for _ in range(BATCH)])


async def keyed(producer: Producer, count: int) -> None:
    async def worker(number: int) -> None:
        for _ in range(count // AT_ONCE):
            await producer.send(Message("Instructions", b"x" * 128, sharding_key=f"order-{number}"))

    await asyncio.gather(*[worker(number) for number in range(AT_ONCE)])


async def asynchronous(producer: Producer, count: int) -> None:
    for _ in range(count // AT_ONCE):
        await asyncio.gather(*[await producer.send_async(Message("Instructions", b"x" * 128)) for _ in range(AT_ONCE)])


async def oneway(producer: Producer, count: int) -> None:
    for _ in range(count // AT_ONCE):
        for _ in range(AT_ONCE):
            await producer.send_oneway(Message("Instructions", b"x" * 128))
        await producer.flush()


class Passing(Hook):
    def before_send(self, context: SendContext) -> None:
        pass

    def after_send(self, context: SendContext) -> None:
        pass


KINDS: Final[dict[str, Callable[[Producer, int], Any]]] = {
    "plain": lambda producer, count: sends(producer, count, 128),
    "real": lambda producer, count: sends(producer, count, 1024, **REAL),
    "batches": batches,
    "sharding-key": keyed,
    "async": asynchronous,
    "oneway": oneway,
    "hook": lambda producer, count: sends(producer, count, 128),
    "trace": lambda producer, count: sends(producer, count, 128),
}
OPTIONS: Final[dict[str, dict[str, Any]]] = {"hook": {"hooks": [Passing()]}, "trace": {"trace": True}}


class Bytecodes:
    """Counts the bytecodes that run while it traces."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()

    def enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "opcode":
            self.counts[frame.f_code] += 1
        return self._step


async def main(port: int, kind: str, messages: int, count_bytecodes: bool) -> None:
    async with Producer("instructions", namesrv=f"127.0.0.1:{port}", **OPTIONS.get(kind, {})) as producer:
        await KINDS[kind](producer, AT_ONCE * 4)
        gc.collect()
        gc.disable()
        bytecodes = Bytecodes()
        if count_bytecodes:
            sys.settrace(bytecodes.enter)
        try:
            await KINDS[kind](producer, messages)
        finally:
            sys.settrace(None)
    if count_bytecodes:
        found = {f"{code.co_qualname}": count / messages for code, count in bytecodes.counts.most_common()}
        print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "bytecodes" in sys.argv[4:]))
