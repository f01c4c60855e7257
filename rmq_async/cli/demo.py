"""Defines ``rmq demo``, which sends messages in every mode over real sockets, reads them back, and checks that none is
missing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from time import perf_counter
from typing import Final

import click

from rmq_async import Admin, ClientConfig, Message, MessageExt, Producer, PullConsumer, RocketMQError, SendResult
from rmq_async.embedded import EmbeddedRocketMQ

from .options import json_option, namesrv_option, number_option, timeout_option
from .output import Output, plain_table
from .running import run
from .security import security_given, security_options, security_settings

TIME_LIMIT: Final = 8.5
"""Seconds for the whole demo, except for the start of the interpreter and an orderly shutdown."""
SHARE: Final = 0.1
"""Share of the time limit after which a mode sends no further messages. A distant cluster gets fewer messages, also in the
later modes, because all messages must be read back in time.
"""
SETTLE: Final = 2.0
"""Maximum seconds to wait for one-way messages that a broker has received and not stored yet."""
MAX_MEMORY: Final = 192 << 20
"""Maximum size of all messages in bytes. The embedded broker keeps 256 MiB and must not drop any message."""
RECORD_SIZE: Final = 640
"""Bytes that a broker adds to a body for the record, properties and book-keeping. The measured maximum is 560."""
IN_FLIGHT: Final = 256
"""Credits of the producer. They are the number of messages that mode async has in flight, and suffice for eight batches."""
AT_ONCE: Final = 64
BATCH: Final = 32
BATCHES_AT_ONCE: Final = 8


@dataclass
class Mode:
    """One sending mode, and the outcomes of its calls.

    Attributes:
        seconds: Duration in seconds of each successful call. In mode async, it is the time until ``on_success``; in mode batch,
            it is the time of each batch.
    """

    name: str
    wanted: int
    until: float
    topic: str
    size: int
    sent: int = 0
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The unique id of each acknowledged message, by key."""
    failed: int = 0
    failure: RocketMQError | None = None
    seconds: list[float] = field(default_factory=list)
    elapsed: float = 0.0
    read: Counter[str] = field(default_factory=Counter)

    def take(self, number: int = 1) -> list[Message]:
        """Return the next messages. Return an empty list when the time is over or all messages are sent."""
        if perf_counter() >= self.until:
            return []
        first, self.sent = self.sent, min(self.sent + number, self.wanted)
        return [self.message(f"{self.name}-{index}") for index in range(first, self.sent)]

    def message(self, key: str) -> Message:
        """Return the message for a key. It is the same each time, so that received messages can be compared byte by byte."""
        body = (f"{self.topic} {key} ".encode() * (self.size // 16 + 1))[: self.size]
        return Message(self.topic, body, tags=self.name, keys=key, properties={"demo": key})

    def stored(self, message: Message, msg_id: str) -> None:
        self.acknowledged[message.keys[0]] = msg_id

    @contextmanager
    def timed(self, number: int) -> Iterator[None]:
        """Record the duration of a call that sends ``number`` messages, or its error."""
        began = perf_counter()
        try:
            yield
        except RocketMQError as error:
            self.fail(number, error)
        else:
            self.seconds.append(perf_counter() - began)

    def fail(self, number: int, error: BaseException) -> None:
        assert isinstance(error, RocketMQError)
        self.failed += number
        self.failure = self.failure or error

    @property
    def answered(self) -> bool:
        return self.name != "oneway"

    def lost(self) -> list[str]:
        return [key for key in self.acknowledged if key not in self.read]

    @property
    def copies(self) -> int:
        return self.read.total() - len(self.read)

    def fields(self) -> dict[str, object]:
        cuts = quantiles(self.seconds, n=100, method="inclusive") if len(self.seconds) > 1 else self.seconds * 99
        p50, p99 = (round(cuts[50 - 1] * 1000, 3), round(cuts[-1] * 1000, 3)) if cuts else (None, None)
        return {
            "type": "mode",
            "mode": self.name,
            "sent": self.sent,
            "failed": self.failed,
            "acknowledged": len(self.acknowledged) if self.answered else None,
            "stored": len(self.read),
            "lost": len(self.lost()),
            "duplicated": self.copies,
            "rate": round(len(self.acknowledged) / self.elapsed) if self.elapsed else 0,
            "p50_ms": p50,
            "p99_ms": p99,
        }


async def one_after_another(mode: Mode, producer: Producer) -> None:
    """Send with ``result = await producer.send(message)``."""
    while taken := mode.take():
        (message,) = taken
        with mode.timed(1):
            result = await producer.send(message)
            mode.stored(message, result.msg_id)


async def awaited(mode: Mode, producer: Producer) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_another(mode, producer))


async def deferred(mode: Mode, producer: Producer) -> None:
    """Send with ``await producer.send_async(message, on_success=..., on_error=...)``. The number of sends in flight equals the
    number of credits.
    """
    while taken := mode.take():
        (message,) = taken
        began = perf_counter()

        def on_success(result: SendResult, message: Message = message, began: float = began) -> None:
            mode.seconds.append(perf_counter() - began)
            mode.stored(message, result.msg_id)

        try:
            await producer.send_async(message, on_success=on_success, on_error=lambda error: mode.fail(1, error))
        except RocketMQError as error:
            mode.fail(1, error)
    await producer.flush()


async def oneway(mode: Mode, producer: Producer) -> None:
    """Send with ``await producer.send_oneway(message)``, which returns once the frame is handed over. Brokers do not
    respond.
    """
    while taken := mode.take():
        (message,) = taken
        with mode.timed(1):
            await producer.send_oneway(message)
            mode.stored(message, "")
    await producer.flush()


async def batches(mode: Mode, producer: Producer) -> None:
    """Send with ``result = await producer.send_batch(messages)``."""

    async def send() -> None:
        while messages := mode.take(BATCH):
            with mode.timed(len(messages)):
                result = await producer.send_batch(messages)
                for message, each in zip(messages, result.results, strict=True):
                    mode.stored(message, each.msg_id)

    async with asyncio.TaskGroup() as group:
        for _ in range(BATCHES_AT_ONCE):
            group.create_task(send())


MODES: Final[dict[str, Callable[[Mode, Producer], Awaitable[None]]]] = {
    "awaited": awaited,
    "async": deferred,
    "oneway": oneway,
    "batch": batches,
    "single": one_after_another,
}
LEGEND: Final = (
    f"awaited: {AT_ONCE} coroutines; async: callbacks, {IN_FLIGHT} in flight; batch: {BATCH} messages a request,",
    f"{BATCHES_AT_ONCE} requests at a time, p50 and p99 of a batch; single: one awaited send at a time. stored: read back and",
    "compared. oneway: brokers answer none of them, so lost means handed over and not found; p50 and p99 of the call.",
)


class _Demo:
    def __init__(self, output: Output, namesrv: str | None, messages: int, size: int, *, keep_topic: bool) -> None:
        self.phase = "while it started"
        self._output = output
        self._namesrv = namesrv
        self._keep_topic = keep_topic
        self._wanted = messages
        self._size = size
        self._topic = f"rmq_demo_{secrets.token_hex(4)}"
        self._modes: list[Mode] = []
        self._damaged: list[str] = []

    async def run(self, timeout: float, security: dict[str, object]) -> int:
        began = perf_counter()
        try:
            async with asyncio.timeout(TIME_LIMIT) as limit, AsyncExitStack() as stack:
                namesrv = self._namesrv or (await stack.enter_async_context(EmbeddedRocketMQ())).namesrv
                client = ClientConfig(namesrv=namesrv, request_timeout=timeout, **security)  # type: ignore[arg-type]
                admin = await stack.enter_async_context(Admin(client=client))
                options = {"timeout": timeout, "async_limit": IN_FLIGHT}
                producer = await stack.enter_async_context(Producer(self._topic, client=client, **options))  # type: ignore[arg-type]
                consumer = await stack.enter_async_context(PullConsumer(self._topic, client=client))
                async with self._topic_on(admin):
                    where = f"cluster {namesrv}" if self._namesrv else f"embedded broker {namesrv}"
                    self._output.line(f"{where}, topic {self._topic}, bodies of {self._size} bytes")
                    for name, send in MODES.items():
                        await self._send(name, send, producer)
                    await self._read(consumer)
        except TimeoutError:
            if not limit.expired():  # the timeout belongs to a request
                raise
            self._output.trouble(f"demo: not finished after {TIME_LIMIT:g} s, {self.phase}")
            return 1
        return self._verdict(perf_counter() - began)

    @asynccontextmanager
    async def _topic_on(self, admin: Admin) -> AsyncIterator[None]:
        """Provide the topic. On a cluster, delete it afterwards, unless the topic is to be kept or a problem was found."""
        await admin.create_topic(self._topic, queues=8)
        yield
        if self._namesrv is not None and not self._keep_topic and not self._problems():
            await admin.delete_topic(self._topic)

    async def _send(self, name: str, send: Callable[[Mode, Producer], Awaitable[None]], producer: Producer) -> None:
        self.phase = f"while it sent in mode {name}"
        began = perf_counter()
        wanted = min([self._wanted, *(mode.sent for mode in self._modes)])
        mode = Mode(name, wanted, began + SHARE * TIME_LIMIT, self._topic, self._size)
        self._modes.append(mode)
        await send(mode, producer)
        mode.elapsed = perf_counter() - began

    async def _read(self, consumer: PullConsumer) -> None:
        expected = sum(len(mode.acknowledged) for mode in self._modes)
        self.phase = f"while it read {expected} messages back"
        queues, until = await consumer.queues(self._topic), perf_counter() + SETTLE
        while sum([await consumer.max_offset(queue) for queue in queues]) < expected:
            if perf_counter() >= until:
                break
            await asyncio.sleep(0.05)
        modes = {mode.name: mode for mode in self._modes}
        async for message in consumer.read(self._topic):
            mode = modes.get(message.tags or "")
            if mode is None or not _is_as_sent(message, mode):
                self._damaged.append(f"{message.msg_id} at offset {message.queue_offset} of {message.queue}")
            else:
                mode.read[message.keys[0]] += 1

    def _problems(self) -> list[str]:
        """Return the reasons why the demo fails. A cluster may drop one-way messages; that alone is not a failure."""
        found = []
        for mode in self._modes:
            lost = mode.lost()
            if lost and (mode.answered or self._namesrv is None):
                first = f"{lost[0]} (msg_id {mode.acknowledged[lost[0]]})"
                found.append(f"{len(lost)} acknowledged messages of mode {mode.name} are missing, the first: {first}")
            if mode.failure is not None:
                first = f"{type(mode.failure).__name__}: {mode.failure}"
                found.append(f"{mode.failed} of {mode.sent} sends of mode {mode.name} failed, the first: {first}")
        if self._damaged:
            found.append(f"{len(self._damaged)} messages differ from those sent, the first: {self._damaged[0]}")
        return found

    def _verdict(self, seconds: float) -> int:
        """Print the figures and the problems, and return the exit code."""
        output, problems = self._output, self._problems()
        totals = self._print_modes()
        place = {"namesrv": self._namesrv, "topic": self._topic, "seconds": round(seconds, 3), "problems": problems}
        output.record({"type": "summary", "ok": not problems, **totals, **place})
        if problems:
            output.trouble(f"demo: {'; '.join(problems)}")
            return 1
        lost = f"{totals['lost']} one-way messages lost" if totals["lost"] else "nothing lost"
        copies = totals["duplicated"] or "nothing"
        output.line()
        output.line(f"{totals['sent']} messages sent and read back in {seconds:.1f} s: {lost}, {copies} duplicated.")
        return 0

    def _print_modes(self) -> dict[str, int]:
        """Print the figures of each mode and an explanation, and return the sums over the modes."""
        output = self._output
        headings = ("sent", "acked", "stored", "lost", "dupl.", "msg/s", "p50 ms", "p99 ms")
        table = plain_table("mode", **dict.fromkeys(headings, True))
        for mode in self._modes:
            row = mode.fields()
            output.record(row)
            table.add_row(*(_shown(value) for name, value in row.items() if name not in ("type", "failed")))
        output.line()
        output.table(table)
        output.line()
        for text in LEGEND:
            output.line(text)
        if self._namesrv is None:
            output.line("The embedded broker shares this process and its CPU, so the rates of a cluster will differ.")
        for mode in self._modes:
            if mode.sent < self._wanted:
                output.line(f"{mode.name}: ended by time after {mode.sent} of {self._wanted} messages.")
        return {
            "sent": sum(mode.sent for mode in self._modes),
            "acknowledged": sum(len(mode.acknowledged) for mode in self._modes if mode.answered),
            "stored": sum(len(mode.read) for mode in self._modes),
            "lost": sum(len(mode.lost()) for mode in self._modes),
            "duplicated": sum(mode.copies for mode in self._modes),
        }


def _is_as_sent(message: MessageExt, mode: Mode) -> bool:
    keys: Sequence[str] = message.keys
    if len(keys) != 1:
        return False
    sent = mode.message(keys[0])
    return message.body == sent.body and message.properties.get("demo") == keys[0]


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


@click.command(short_help="Send in every mode, read back, check that nothing is missing.")
@namesrv_option("Name servers of a cluster to use instead of the broker in this process.")
@timeout_option
@json_option
@security_options
@number_option("--messages", most=100_000, default=5_000, help="Messages in each mode.")
@number_option("--size", least=32, most=1 << 20, default=128, metavar="BYTES", help="Size of a message's body.")
@click.option("--keep-topic", is_flag=True, help="Leave the topic and its messages on the cluster.")
def demo(namesrv: str | None, timeout: float, as_json: bool, messages: int, size: int, keep_topic: bool) -> int:
    """Send messages in every mode, read all of them back, and check that none is missing.

    Without --namesrv, a broker is started in memory, inside this process, and $NAMESRV_ADDR is ignored. With --namesrv, a topic
    is created on that cluster, and is deleted again unless the demo fails.

    The demo ends within ten seconds. The exit code is 1 if an acknowledged message is missing or damaged, or if anything else
    failed.
    """
    if namesrv is None and security_given():
        raise click.UsageError("the broker in this process supports neither users nor TLS: give --namesrv too")
    needed = len(MODES) * messages * (size + RECORD_SIZE)
    if needed > MAX_MEMORY:
        taken = f"{messages} messages of {size} bytes in each mode take {-(-needed >> 20)} MiB"
        raise click.UsageError(f"{taken}, the limit is {MAX_MEMORY >> 20} MiB; lower --messages or --size")
    logging.getLogger("rmq_async").setLevel(logging.ERROR)  # warnings of the client would repeat what the demo counts
    security = {} if namesrv is None else security_settings()
    return run(_Demo(Output(as_json=as_json), namesrv, messages, size, keep_topic=keep_topic).run(timeout, dict(security)))
