"""The command ``rmq send``: sends one message, each line of standard input, or each message that ``rmq pull --json`` printed.

As many messages are in flight as the producer has credits; results are printed in the order of the input. Messages for one
queue or with a sharding key are sent one after the other, because a broker may store concurrent sends in any order. For copies,
whose number is large, the producer keeps the order: it has one request in flight for each queue and meanwhile gathers further
messages. The first failure ends the command. The command waits for the messages in flight, and prints their results and then
the error.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from rmq_async import (
    Admin,
    ClientConfig,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerConfig,
    RocketMQError,
    SendResult,
)
from rmq_protocol.constants import AUTO_CREATE_TOPIC_KEY
from rmq_protocol.message import MAX_DELAY_LEVEL

from .._threads import start_thread
from .options import PROPERTY, QUEUE, ClientOptions, client_config, client_options, number_option, pass_options, seconds_option
from .output import Output
from .records import LeftOut, Queues, fields_of_queue, read_record
from .running import run

CHUNK: Final = 64 * 1024
AHEAD: Final = 4
"""Maximum number of chunks that are read before they are used."""


async def lines_of(descriptor: int, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield each line without its line end.

    Raises:
        OSError: If a read fails.
        ValueError: For a line of more than ``limit`` bytes. A line that ends in the same chunk in which it exceeds the limit is
            accepted.
        NoThreadError: If no thread can be started.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def read() -> None:
        while True:
            room.acquire()
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, CHUNK)
            except OSError as error:
                chunk = error
            with suppress(RuntimeError):  # the loop is closed, so the chunk has no reader
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            if not chunk or isinstance(chunk, OSError):
                return

    start_thread(read, "rmq standard input")
    rest = bytearray()
    number = 1
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            if rest:
                yield bytes(rest)
            return
        rest += chunk
        if b"\n" in chunk:
            *whole, last = rest.split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield bytes(line.removesuffix(b"\r"))
            number += len(whole)
        if len(rest) > limit:
            raise ValueError(f"line {number} of standard input is longer than {limit} bytes; shorten it")


GROUP: Final = "rmq_cli"
IN_FLIGHT: Final = 256
"""The producer's credits."""
MAX_UNPRINTED: Final = 4096
"""Maximum number of messages, in flight or stored, whose results are not printed yet."""
STDIN: Final = 0
_MOST_PRIORITY: Final = 2**31 - 1
_LONGEST_LINE: Final = 6 * ProducerConfig.max_message_size + (1 << 20)
"""Maximum size of a line in bytes. JSON writes a control character of a body as six bytes (``\\u0001``), and properties have at
most 32 KiB before they are escaped.
"""

Outgoing = tuple[str, Message, MessageQueue | None]
"""The name of the message in errors, the message, and its queue (None for any queue)."""
Results = asyncio.Queue[tuple[str, asyncio.Future[SendResult]] | None]
"""The names and results in the order of the messages. None follows the last message."""


@dataclass(frozen=True, kw_only=True)
class _SendOptions(ClientOptions):
    topic: str
    source: str | None
    body: str | None
    path: Path | None
    count: int
    tags: str | None
    keys: tuple[str, ...]
    properties: tuple[tuple[str, str], ...]
    delay: float | None
    delay_level: int | None
    sharding_key: str | None
    lite_topic: str | None
    priority: int | None
    queue: tuple[str, int] | None
    create: bool
    group: str

    def check(self) -> None:
        """Raise UsageError for options that contradict each other, and if no option names the messages."""
        given = sum(each is not None for each in (self.source, self.body, self.path))
        if self.source not in (None, "-") or given > 1 or (not given and not self.as_json):
            raise click.UsageError("give one of --body TEXT, --file PATH and - (each line of standard input), or --json")
        if not self.is_single and self.count != 1:
            raise click.UsageError("--count repeats one message; give --body or --file with it")
        if self.delay is not None and self.delay_level is not None:
            raise click.UsageError("give --delay or --delay-level, not both")
        special: dict[str, object] = {
            "--lite": self.lite_topic,
            "--priority": self.priority,
            "--sharding-key": self.sharding_key,
        }
        special |= {"--delay": self.delay, "--delay-level": self.delay_level, "--queue": self.queue}
        named = [name for name, value in special.items() if value is not None]
        if len(named) > 1 and named[0] in ("--lite", "--priority"):
            raise click.UsageError(f"give {named[0]} or {named[1]}, not both")

    @property
    def is_single(self) -> bool:
        """Whether there is one message, given by --body or --file."""
        return self.body is not None or self.path is not None

    @property
    def is_copy(self) -> bool:
        """Whether messages are read from lines in the format that ``--json`` prints."""
        return self.source is None and not self.is_single

    @property
    def only_queue(self) -> MessageQueue | None:
        return None if self.queue is None else MessageQueue(self.topic, *self.queue)

    def message(self, body: bytes) -> Message:
        return Message(
            self.topic,
            body,
            tags=self.tags,
            keys=self.keys,
            properties=dict(self.properties) or None,
            delay=self.delay,
            delay_level=self.delay_level or 0,
            sharding_key=self.sharding_key,
            lite_topic=self.lite_topic,
            priority=self.priority,
        )

    def copy(self, received: MessageExt) -> Message:
        """Return the copy of a message. The given options replace fields of the copy, and properties with the same name."""
        changes: dict[str, Any] = {"delay": self.delay, "delay_level": self.delay_level or 0}
        given: dict[str, object] = {"tags": self.tags, "keys": self.keys or None, "sharding_key": self.sharding_key}
        given |= {"lite_topic": self.lite_topic, "priority": self.priority}
        changes |= {name: value for name, value in given.items() if value is not None}
        if self.properties:
            own = Message.from_received(received, topic=self.topic).properties
            changes["properties"] = {**(own or {}), **dict(self.properties)}
        return Message.from_received(received, topic=self.topic, **changes)


@click.command(short_help="Send a message, each line of standard input, or a copy of messages.")
@click.argument("topic")
@click.argument("source", required=False, metavar="[-]")
@click.option("--body", metavar="TEXT", help="The message.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="PATH",
    help="A file that is the message; - for all of standard input.",
)
@number_option("--count", default=1, help="Send the message N times.")
@click.option("--tags", metavar="TAG", help="Its tag.")
@click.option("--keys", "keys", multiple=True, metavar="KEY", help="A key to find it by; may be given again.")
@click.option("--property", "properties", type=PROPERTY, multiple=True, help="A property; may be given again.")
@seconds_option("--delay", help="Deliver it later (brokers from 5.0 on).")
@number_option("--delay-level", most=MAX_DELAY_LEVEL, help="Deliver it later, by the broker's level (a stock broker has 18).")
@click.option("--sharding-key", metavar="KEY", help="Messages with the same key go to the same queue, in order.")
@click.option(
    "--lite", "lite_topic", metavar="NAME", help="Send to this lite topic of a topic of type LITE (brokers from 5.5 on)."
)
@number_option("--priority", default=None, least=0, most=_MOST_PRIORITY, help="Its priority in a topic of type PRIORITY.")
@click.option("--queue", type=QUEUE, help="Send to this queue, in order.")
@click.option("--create/--no-create", default=True, show_default=True, help="Whether brokers may create a missing topic.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@client_options
@pass_options(_SendOptions)
def send(options: _SendOptions) -> int:
    """Send messages to TOPIC: --body, --file or, with -, each line of standard input that is not blank.

    With --json and none of these, each line of standard input is a message as rmq pull --json prints it, so that `rmq pull A
    --json | rmq send B --json` copies a topic: bodies, tags, keys, flags, sharding keys, lite topics, priorities and
    properties. The messages of each queue are copied in their order, into the queue with the same broker and number if TOPIC
    has it. System properties are not copied: each copy gets a new id, and has no delay, retry or transaction. Options such as
    --tags replace the values of the messages. A send without a response in time is repeated, so a copy of a topic may contain a
    message twice.

    The command prints a line for each stored message: status, id, queue, offset. The first failure ends it with exit code 1.
    """
    options.check()
    return run(_send(options, client_config(options.namesrv, options.timeout)))


def _body(body: str | None, path: Path | None) -> bytes:
    if body is not None:
        return body.encode(errors="surrogateescape")
    assert path is not None
    return sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()


def _outgoing(options: _SendOptions, queues: Queues | None, left_out: LeftOut) -> AsyncIterator[Outgoing]:
    if queues is not None:
        return _copies(options, queues, left_out)
    return _again(options, _body(options.body, options.path)) if options.is_single else _lines(options)


async def _again(options: _SendOptions, body: bytes) -> AsyncIterator[Outgoing]:
    for number in range(options.count):
        yield f"message {number + 1}", options.message(body), options.only_queue


async def _lines(options: _SendOptions) -> AsyncIterator[Outgoing]:
    async for number, line in _numbered_lines(ProducerConfig.max_message_size):
        yield f"line {number}", options.message(line), options.only_queue


async def _copies(options: _SendOptions, queues: Queues, left_out: LeftOut) -> AsyncIterator[Outgoing]:
    async for number, line in _numbered_lines(_LONGEST_LINE):
        try:
            received, place = read_record(line)
            message = options.copy(received)
        except ValueError as error:
            raise click.ClickException(f"line {number} of standard input: {error}") from None
        name = f"line {number}"
        left_out.count(
            received, name, tags=options.tags is None, keys=not options.keys, sharding_key=options.sharding_key is None
        )
        queue = options.only_queue
        chosen = message.lite_topic is not None or message.priority is not None or options.sharding_key is not None
        if queue is None and not chosen and place is not None:
            queue = queues.of(place)
        yield name, message, queue


async def _numbered_lines(limit: int) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their line numbers, which begin with 1."""
    number = 0
    try:
        async for line in lines_of(STDIN, limit):
            number += 1
            if line.strip():
                yield number, line
    except ValueError as error:
        raise click.ClickException(str(error)) from None


async def _send(options: _SendOptions, config: ClientConfig) -> int:
    output = Output(as_json=options.as_json)
    if not options.create:
        async with Admin(client=config) as admin:
            await admin.topic_route(options.topic)
    producer = Producer(
        options.group,
        client=config,
        timeout=config.request_timeout,
        async_limit=IN_FLIGHT,
        retry_same_queue=options.is_copy,
        create_topic_key=AUTO_CREATE_TOPIC_KEY
        if options.create
        else options.topic,  # a missing topic cannot be the model for itself
    )
    async with producer:
        queues = Queues(await producer.fetch_publish_queues(options.topic)) if options.is_copy else None
        results: Results = asyncio.Queue()
        room, left_out = asyncio.Semaphore(MAX_UNPRINTED), LeftOut()
        outgoing = _outgoing(options, queues, left_out)
        sender = asyncio.create_task(_send_all(options, outgoing, producer, results, room), name="rmq send")
        stored, failed, failure = 0, "", None
        try:
            while (sent := await results.get()) is not None:
                room.release()
                name, future = sent
                try:
                    _print(output, await future)
                    stored += 1
                except RocketMQError as error:
                    failed, failure = failed or name, failure or error
                    sender.cancel()
        finally:
            sender.cancel()
            await asyncio.wait([sender])
    left_out.report(output)
    if options.is_single and failure is not None:
        raise failure
    if failure is not None:
        raise click.ClickException(f"{failed}: {failure}; {stored} messages were sent") from failure
    try:
        sender.result()
    except click.ClickException as error:
        raise click.ClickException(f"{error.message}; {stored} messages were sent") from None
    return 0


async def _send_all(
    options: _SendOptions,
    outgoing: AsyncIterator[Outgoing],
    producer: Producer,
    results: Results,
    room: asyncio.Semaphore,
) -> None:
    ordered = (options.queue, options.sharding_key, options.lite_topic)
    one_by_one = not options.is_copy and any(each is not None for each in ordered)
    try:
        async for name, message, queue in outgoing:
            await room.acquire()
            try:
                future = await producer.send_async(message, queue=queue, on_error=_ignore)
            except RocketMQError as error:
                refused: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
                refused.set_exception(error)
                results.put_nowait((name, refused))
                return
            results.put_nowait((name, future))
            if one_by_one:
                await asyncio.wait([future])
                if future.exception() is not None:
                    return
    finally:
        results.put_nowait(None)


def _ignore(error: BaseException) -> None:
    """Ignore the error, which is raised when its future is awaited."""


def _print(output: Output, result: SendResult) -> None:
    queue = result.queue
    output.record(
        {
            "status": result.status.name,
            "msg_id": result.msg_id,
            "offset_msg_id": result.offset_msg_id,
            **fields_of_queue(queue),
            "queue_offset": result.queue_offset,
            "recall_handle": result.recall_handle,
        }
    )
    output.line(f"{result.status.name} {result.msg_id} {queue.broker_name}:{queue.queue_id} {result.queue_offset}")
