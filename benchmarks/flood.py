"""Floods the embedded broker and looks at what is left: ``python benchmarks/flood.py``.

``rmq server`` runs as a process of its own. One client sends batches of 32 as fast as it can, then one-way messages. Every
message says its queue and its number there, so that afterwards everything the log still holds can be read and held against
what was acknowledged: each queue whole from its minimum to its maximum offset, nothing missing, nothing twice, and as much
kept as the bound allows. Then the flood goes on, and a signal has to end the server within a second. Exit code 1 says that
one of this was not so.

The client writes ready frames and only patches the numbers, since here the server is what is looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from rmq_protocol.batch import encode_batch_message
from rmq_protocol.command import RemotingCommand, decode_command, encode_command
from rmq_protocol.constants import ONEWAY_FLAG, RequestCode
from rmq_protocol.frame import FrameDecoder
from rmq_protocol.properties import properties_text
from rmq_protocol.stored import decode_messages

TOPIC: Final = "Flood"
QUEUES: Final = 4
BATCH: Final = 32
IN_FLIGHT: Final = 64
"""Batches, and pulls, without an answer."""
RECORD_OVERHEAD: Final = 128
"""What the server counts for a message besides its record."""
END_WITHIN: Final = 1.0
_NUMBERS: Final = struct.Struct(">iq")
_MARK: Final = b"<numbers!!!>"
assert len(_MARK) == _NUMBERS.size


class FloodError(Exception):
    """What was not as it has to be."""


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FloodError(otherwise)


class Template:
    """The frame of one request; its messages' numbers are filled in where the bodies have ``_MARK``."""

    def __init__(self, command: RemotingCommand) -> None:
        frame = b"".join(encode_command(command))
        self._frame = bytearray(frame)
        self._places = []
        at = frame.find(_MARK)
        while at >= 0:
            self._places.append(at)
            at = frame.find(_MARK, at + 1)

    def fill(self, queue: int, number: int) -> bytes:
        frame, pack = self._frame, _NUMBERS.pack_into
        for more, place in enumerate(self._places):
            pack(frame, place, queue, number + more)
        return bytes(frame)


def send_fields(queue: int, properties: str, *, batch: bool) -> dict[str, str | None]:
    fields: dict[str, str | None] = {"a": "flood", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue), "f": "0"}
    return {**fields, "g": "1700000000000", "h": "0", "i": properties, "j": "0", "k": "false", "m": str(batch).lower()}


class Client(asyncio.Protocol):
    """One connection. ``sent`` counts the messages of each queue, ``acknowledged`` those answered with success."""

    def __init__(self, size: int) -> None:
        self.sent = [0] * QUEUES
        self.acknowledged = 0
        self.refused: list[str] = []
        body = _MARK + b"x" * (size - len(_MARK))
        message = encode_batch_message(body, 0, properties_text({"UNIQ_KEY": "7F0000010A1B2C3D4E5F001122330000"}).encode())
        self._batches = []
        self._oneway = []
        for queue in range(QUEUES):
            batch, single = send_fields(queue, "", batch=True), send_fields(queue, "UNIQ_KEY\x01u\x02", batch=False)
            code = int(RequestCode.SEND_BATCH_MESSAGE)
            self._batches.append(Template(RemotingCommand(code=code, ext_fields=batch, body=message * BATCH)))
            code = int(RequestCode.SEND_MESSAGE_V2)
            self._oneway.append(Template(RemotingCommand(code=code, flag=ONEWAY_FLAG, ext_fields=single, body=body)))
        self._decoder = FrameDecoder()
        self._answers: deque[Callable[[RemotingCommand], None]] = deque()
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    @property
    def lost(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(1 << 20)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        self._changed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._answers.popleft()(decode_command(frame))  # requests of one connection are answered in their order
        self._changed.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def wait(self, at_most: int) -> None:
        """Until so many requests are without an answer."""
        while len(self._answers) > at_most and not self.lost:
            self._changed.clear()  # connection_lost sets it too
            await asyncio.wait_for(self._changed.wait(), 30)

    async def ask(self, code: int, fields: dict[str, str | None]) -> RemotingCommand:
        answers: list[RemotingCommand] = []
        self._write(b"".join(encode_command(RemotingCommand(code=code, ext_fields=fields))), answers.append)
        await self.wait(0)
        check(bool(answers), "the connection was lost")
        return answers[0]

    async def offset(self, code: int, queue: int) -> int:
        response = await self.ask(code, {"topic": TOPIC, "queueId": str(queue)})
        return int((response.ext_fields or {})["offset"] or "")

    async def batches(self, go_on: Callable[[], bool]) -> None:
        """As fast as they go while ``go_on`` says so."""
        while go_on() and not self.lost:
            for queue, template in enumerate(self._batches):
                self._write(template.fill(queue, self.sent[queue]), self._stored)
                self.sent[queue] += BATCH
            await self.wait(IN_FLIGHT)
            await self._writable.wait()

    async def oneway(self, count: int) -> None:
        for number in range(count):
            queue = number % QUEUES
            self._write(self._oneway[queue].fill(queue, self.sent[queue]), None)
            self.sent[queue] += 1
            if not self._writable.is_set():
                await asyncio.wait_for(self._writable.wait(), 30)
        check(not self.lost, "the connection was lost")

    async def read_back(self, queue: int, size: int) -> tuple[int, int]:
        """Messages and bytes of records from minimum to maximum offset. Raises FloodError for a gap or a wrong message."""
        low, high = [await self.offset(code, queue) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)]
        check(high == self.sent[queue], f"queue {queue}: maximum offset {high}, {self.sent[queue]} were sent")
        kept = 0
        at = low
        while at < high:
            response = await self.ask(RequestCode.PULL_MESSAGE, _pull_fields(queue, at))
            check(response.code == 0, f"queue {queue}: a pull at {at} is answered with {response.code}, {response.remark}")
            for message in decode_messages(response.body, check_crc=True).messages:
                expected = _NUMBERS.pack(queue, at) + b"x" * (size - _NUMBERS.size)
                there = (message.queue_offset, message.body) == (at, expected)
                check(there, f"queue {queue}: at {at} is {message.body[:20]!r} of offset {message.queue_offset}")
                kept += message.store_size
                at += 1
        return high - low, kept

    def _stored(self, response: RemotingCommand) -> None:
        if response.code:
            self.refused.append(f"{response.code}: {response.remark}")
        else:
            self.acknowledged += BATCH

    def _write(self, frame: bytes, on_answer: Callable[[RemotingCommand], None] | None) -> None:
        if self._transport is not None and not self.lost:
            if on_answer is not None:
                self._answers.append(on_answer)
            self._transport.write(frame)


def _pull_fields(queue: int, offset: int) -> dict[str, str | None]:
    fields: dict[str, str | None] = {
        "consumerGroup": "flood",
        "topic": TOPIC,
        "queueId": str(queue),
        "queueOffset": str(offset),
    }
    fields |= {"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"}
    return {**fields, "subscription": "*", "subVersion": "0", "expressionType": "TAG"}


class Server:
    """``rmq server`` in a process of its own, with warnings as errors."""

    def __init__(self, process: asyncio.subprocess.Process, namesrv: str, broker: str) -> None:
        self.process = process
        self.namesrv = namesrv
        self.broker = broker

    def memory(self, name: str) -> float:
        """MiB; ``name``: VmRSS for now, VmHWM for the most there ever was."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines() if line.startswith(name)) / 1024

    async def end(self, number: signal.Signals) -> float:
        """Seconds it took. Raises FloodError for a bad end."""
        began = time.monotonic()
        self.process.send_signal(number)
        _, errors = await asyncio.wait_for(self.process.communicate(), 30)
        took = time.monotonic() - began
        check(self.process.returncode == 0, f"{number.name}: exit code {self.process.returncode}\n{errors.decode()}")
        check(not errors, f"{number.name}: {errors.decode()}")
        check(took < END_WITHIN, f"{number.name}: it took {took:.2f} s to end")
        return took


@contextlib.asynccontextmanager
async def running_server(megabytes: int) -> AsyncIterator[Server]:
    command = [sys.executable, "-W", "error", "-m", "rmq_async.cli", "server"]
    command += ["--port", "0", "--json", "--max-memory", str(megabytes)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        assert process.stdout is not None
        announced = msgspec.json.decode(await asyncio.wait_for(process.stdout.readline(), 20))
        yield Server(process, announced["namesrv"], announced["brokers"]["broker-a"])
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def connect(server: Server, size: int) -> Client:
    host, _, port = server.broker.rpartition(":")
    _, client = await asyncio.get_running_loop().create_connection(lambda: Client(size), host, int(port))
    return client


async def flood(megabytes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Raises FloodError for what was not as it has to be."""
    async with running_server(megabytes) as server:
        started = server.memory("VmRSS")
        client = await connect(server, options.body)
        began = time.monotonic()
        await client.batches(lambda: sum(client.sent) < options.batches * BATCH)
        await client.wait(0)
        batches_took, batched = time.monotonic() - began, client.acknowledged
        check(not client.refused, f"batches were refused: {client.refused[:3]}")
        check(batched == sum(client.sent), f"{batched} acknowledged, {sum(client.sent)} sent")
        began = time.monotonic()
        await client.oneway(options.oneway)
        await client.offset(RequestCode.GET_MAX_OFFSET, 0)  # answered when all before it is served
        oneway_took = time.monotonic() - began
        read = [await client.read_back(queue, options.body) for queue in range(QUEUES)]
        kept, size = (sum(column) for column in zip(*read, strict=True))
        most = server.memory("VmHWM")
        counted = (size + kept * RECORD_OVERHEAD) / 2**20
        if kept < sum(client.sent):
            check(counted > megabytes * 0.99, f"only {counted:.1f} MiB of {megabytes} are kept")
        check(counted <= megabytes, f"{counted:.1f} MiB are kept, {megabytes} is the bound")
        limit = most_resident(megabytes)
        check(most <= limit, f"{most:.0f} MiB resident, {limit:.0f} is the bound")
        term = await end_under_load(server, client, signal.SIGTERM)
    async with running_server(megabytes) as server:
        interrupt = await end_under_load(server, await connect(server, options.body), signal.SIGINT)
    return {
        "max_memory_mb": megabytes,
        "batched": batched,
        "batched_rate": batched / batches_took,
        "oneway": options.oneway,
        "oneway_rate": options.oneway / oneway_took if options.oneway else None,
        "kept": kept,
        "started_rss_mb": started,
        "most_rss_mb": most,
        "rss_limit_mb": limit,
        "sigterm_s": term,
        "sigint_s": interrupt,
    }


def most_resident(megabytes: int) -> float:
    """What docs/testing.md promises: MiB of the whole process."""
    return megabytes * 1.25 + 64


async def end_under_load(server: Server, client: Client, number: signal.Signals) -> float:
    load = asyncio.ensure_future(client.batches(lambda: True))
    before = client.acknowledged
    while client.acknowledged < before + 200 * BATCH:
        await asyncio.sleep(0.01)
        check(not load.done(), "the flood ended by itself")
    took = await server.end(number)
    await load
    client.close()
    return took


def table(results: Iterable[dict[str, Any]]) -> str:
    heads = ("max memory", "batched", "msg/s", "one-way", "msg/s", "kept", "RSS at start", "most", "bound", "SIGTERM", "SIGINT")
    lines = [heads]
    for each in results:
        rates = (each["batched_rate"], each["oneway_rate"] or 0)
        memory = [f"{each[name]:.0f} MiB" for name in ("started_rss_mb", "most_rss_mb", "rss_limit_mb")]
        ends = [f"{each[name]:.2f} s" for name in ("sigterm_s", "sigint_s")]
        counts = [f"{each['batched']:,}", f"{rates[0]:,.0f}", f"{each['oneway']:,}", f"{rates[1]:,.0f}", f"{each['kept']:,}"]
        lines.append((f"{each['max_memory_mb']} MiB", *counts, *memory, *ends))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def parse(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="flood.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-memory", default="256,64", help="MiB that the server may keep; a run for each (default: 256,64)")
    parser.add_argument("--batches", type=int, default=100_000, help=f"of {BATCH} messages (default: 100,000)")
    parser.add_argument("--oneway", type=int, default=500_000, help="one-way messages (default: 500,000)")
    parser.add_argument("--body", type=int, default=128, help=f"bytes of a body, {_NUMBERS.size} at least (default: 128)")
    parser.add_argument("--json", metavar="FILE", help="write everything measured to FILE (- for the standard output)")
    options = parser.parse_args(given)
    try:
        options.max_memory = [int(text) for text in options.max_memory.split(",")]
    except ValueError:
        parser.error(f"--max-memory: numbers with commas between them, not {options.max_memory!r}")
    if min(options.max_memory) < 1 or options.batches < 1 or options.oneway < 0 or options.body < _NUMBERS.size:
        parser.error(f"--max-memory and --batches must be above 0, --oneway not below, --body {_NUMBERS.size} at least")
    return options


def main(given: list[str] | None = None) -> int:
    options = parse(given)
    results = []
    for megabytes in options.max_memory:
        try:
            results.append(asyncio.run(flood(megabytes, options)))
        except (FloodError, TimeoutError) as error:
            print(f"flood.py: {megabytes} MiB: {error or 'no answer in time'}", file=sys.stderr)
            return 1
    if options.json == "-":
        machine = {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()}
        document = {"machine": machine, "body": options.body, "runs": results}
        print(msgspec.json.format(msgspec.json.encode(document)).decode())
    else:
        print(table(results))
        if options.json:
            Path(options.json).write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
