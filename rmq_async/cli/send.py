"""``rmq send``: sends one message, or each line of standard input.

As many messages are in flight as the producer has credits; results are printed in the order of the input. Messages for one queue
or with a sharding key are sent one after the other, because a broker may store concurrent sends in any order. The first failure
ends the command: it waits for the messages in flight, prints their results and then the error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rmq_async import ClientConfig, Message, MessageQueue, Producer, ProducerConfig, RocketMQError, SendResult
from rmq_protocol.message import MAX_DELAY_LEVEL

from .lines import lines_of
from .options import PROPERTY, QUEUE, ClientOptions, client_config, client_options, pass_options, run
from .output import Output

__all__ = ["send"]

GROUP: Final = "rmq_cli"
IN_FLIGHT: Final = 256
MAX_UNPRINTED: Final = 4096
"""Messages in flight or stored whose results are not printed yet."""
STDIN: Final = 0

Results = asyncio.Queue[asyncio.Future[SendResult] | None]
"""Results in the order of the messages; None behind the last one."""


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
    queue: tuple[str, int] | None
    group: str

    def check(self) -> None:
        """Raises UsageError for options that contradict each other."""
        given = sum(each is not None for each in (self.source, self.body, self.path))
        if given != 1 or self.source not in (None, "-"):
            raise click.UsageError("give one of --body TEXT, --file PATH and - (each line of standard input)")
        if self.source and self.count != 1:
            raise click.UsageError("--count repeats one message, it does not go with -")
        if self.delay is not None and self.delay_level is not None:
            raise click.UsageError("give --delay or --delay-level, not both")

    def bodies(self) -> AsyncIterator[bytes]:
        return _lines() if self.source else _again(_body(self.body, self.path), self.count)

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
        )


@click.command(short_help="Send a message, or each line of standard input.")
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
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Send the message N times.")
@click.option("--tags", metavar="TAG", help="Its tag.")
@click.option("--keys", "keys", multiple=True, metavar="KEY", help="A key to find it by; may be given again.")
@click.option("--property", "properties", type=PROPERTY, multiple=True, help="A property; may be given again.")
@click.option("--delay", type=click.FloatRange(0.0), metavar="SECONDS", help="Deliver it later (brokers from 5.0 on).")
@click.option(
    "--delay-level",
    type=click.IntRange(1, MAX_DELAY_LEVEL),
    metavar="N",
    help="Deliver it later, by the broker's level (a stock broker has 18).",
)
@click.option("--sharding-key", metavar="KEY", help="Messages with the same key go to the same queue, in order.")
@click.option("--queue", type=QUEUE, help="Send to this queue, in order.")
@click.option("--group", default=GROUP, show_default=True, help="Producer group.")
@client_options
@pass_options(_SendOptions)
def send(options: _SendOptions) -> int:
    """Send messages to TOPIC: --body, --file or, with -, each line of standard input that is not blank.

    Prints a line for each stored message: status, id, queue, offset. The first failure ends it with exit code 1.
    """
    options.check()
    bodies = options.bodies()
    return run(_send(options, bodies, client_config(options.namesrv, options.timeout)))


def _body(body: str | None, path: Path | None) -> bytes:
    if body is not None:
        return body.encode(errors="surrogateescape")
    assert path is not None
    return sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()


async def _again(body: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield body


async def _lines() -> AsyncIterator[bytes]:
    try:
        async for line in lines_of(STDIN, ProducerConfig.max_message_size):
            if line.strip():
                yield line
    except ValueError as error:
        raise click.ClickException(str(error)) from None


async def _send(options: _SendOptions, bodies: AsyncIterator[bytes], config: ClientConfig) -> int:
    output = Output(as_json=options.as_json)
    async with Producer(options.group, client=config, timeout=config.request_timeout, async_limit=IN_FLIGHT) as producer:
        results: Results = asyncio.Queue()
        room = asyncio.Semaphore(MAX_UNPRINTED)
        sender = asyncio.create_task(_send_all(options, bodies, producer, results, room), name="rmq send")
        number, failed, failure = 0, 0, None
        try:
            while (future := await results.get()) is not None:
                room.release()
                number += 1
                try:
                    _print(output, await future)
                except RocketMQError as error:
                    failed, failure = failed or number, failure or error
                    sender.cancel()
        finally:
            sender.cancel()
            await asyncio.wait([sender])
    if failure is not None:
        if options.source:
            raise click.ClickException(f"message {failed}: {failure}") from failure
        raise failure
    sender.result()
    return 0


async def _send_all(
    options: _SendOptions, bodies: AsyncIterator[bytes], producer: Producer, results: Results, room: asyncio.Semaphore
) -> None:
    queue = MessageQueue(options.topic, *options.queue) if options.queue is not None else None
    in_order = queue is not None or options.sharding_key is not None
    try:
        async for body in bodies:
            await room.acquire()
            try:
                future = await producer.send_async(options.message(body), queue=queue, on_error=_ignore)
            except RocketMQError as error:
                refused: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
                refused.set_exception(error)
                results.put_nowait(refused)
                return
            results.put_nowait(future)
            if in_order:
                await asyncio.wait([future])
                if future.exception() is not None:
                    return
    finally:
        results.put_nowait(None)


def _ignore(error: BaseException) -> None:
    """Ignores the error here: its future is awaited in its turn."""


def _print(output: Output, result: SendResult) -> None:
    queue = result.queue
    output.record(
        {
            "status": result.status.name,
            "msg_id": result.msg_id,
            "offset_msg_id": result.offset_msg_id,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue_id": queue.queue_id,
            "queue_offset": result.queue_offset,
            "recall_handle": result.recall_handle,
        }
    )
    output.line(f"{result.status.name} {result.msg_id} {queue.broker_name}:{queue.queue_id} {result.queue_offset}")
