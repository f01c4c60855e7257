"""``rmq send``: one message, or each line of standard input.

Messages are on their way together, as many as the producer has credits, and are told in the order they were given; those for one
queue or with a sharding key go one after the other, for a broker may store what arrives together in any order. The first that
fails ends it: those on their way are waited for and told, and then what went wrong.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from rmq_async import ClientConfig, Message, MessageQueue, Producer, ProducerConfig, RocketMQError, SendResult
from rmq_protocol.message import MAX_DELAY_LEVEL

from .lines import lines_of
from .options import PROPERTY, QUEUE, client_config, client_options, run
from .output import Output

__all__ = ["send"]

GROUP: Final = "rmq_cli"
IN_FLIGHT: Final = 256
BEHIND: Final = 4096
"""Messages begun and not yet told."""
STDIN: Final = 0


@dataclass(frozen=True)
class _Sending:
    """What to send: ``make`` turns a body into a message. ``in_order``: each waits for the one before it. ``each_line``: errors
    say which message it was."""

    bodies: AsyncIterator[bytes]
    make: Callable[[bytes], Message]
    queue: MessageQueue | None
    in_order: bool
    each_line: bool


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
def send(
    topic: str,
    source: str | None,
    body: str | None,
    path: Path | None,
    count: int,
    tags: str | None,
    keys: tuple[str, ...],
    properties: tuple[tuple[str, str], ...],
    delay: float | None,
    delay_level: int | None,
    sharding_key: str | None,
    queue: tuple[str, int] | None,
    group: str,
    namesrv: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Send messages to TOPIC: --body, --file or, with -, each line of standard input that is not blank.

    Each stored message is told on a line: status, id, queue, offset. The first failure ends it with exit code 1.
    """
    if sum(given is not None for given in (source, body, path)) != 1 or source not in (None, "-"):
        raise click.UsageError("give one of --body TEXT, --file PATH and - (each line of standard input)")
    if source and count != 1:
        raise click.UsageError("--count repeats one message, it does not go with -")
    if delay is not None and delay_level is not None:
        raise click.UsageError("give --delay or --delay-level, not both")

    def make(text: bytes) -> Message:
        return Message(
            topic,
            text,
            tags=tags,
            keys=keys,
            properties=dict(properties) or None,
            delay=delay,
            delay_level=delay_level or 0,
            sharding_key=sharding_key,
        )

    bodies = _lines() if source else _again(_body(body, path), count)
    chosen = MessageQueue(topic, *queue) if queue is not None else None
    in_order = chosen is not None or sharding_key is not None
    sending = _Sending(bodies, make, chosen, in_order=in_order, each_line=bool(source))
    config = client_config(namesrv, timeout)
    return run(_send(sending, group, config, Output(as_json=as_json)))


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


async def _send(sending: _Sending, group: str, config: ClientConfig, output: Output) -> int:
    async with Producer(group, client=config, timeout=config.request_timeout, async_limit=IN_FLIGHT) as producer:
        begun: asyncio.Queue[asyncio.Future[SendResult] | None] = asyncio.Queue()
        untold = asyncio.Semaphore(BEHIND)
        feeding = asyncio.create_task(_feed(sending, producer, begun, untold), name="rmq send")
        number, failed, failure = 0, 0, None
        try:
            while (future := await begun.get()) is not None:
                untold.release()
                number += 1
                try:
                    _tell(output, await future)
                except RocketMQError as error:
                    failed, failure = failed or number, failure or error
                    feeding.cancel()
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
    if failure is not None:
        if sending.each_line:
            raise click.ClickException(f"message {failed}: {failure}") from failure
        raise failure
    feeding.result()
    return 0


async def _feed(
    sending: _Sending,
    producer: Producer,
    begun: asyncio.Queue[asyncio.Future[SendResult] | None],
    untold: asyncio.Semaphore,
) -> None:
    try:
        async for body in sending.bodies:
            await untold.acquire()
            try:
                future = await producer.send_async(sending.make(body), queue=sending.queue, on_error=_told_later)
            except RocketMQError as error:
                refused: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
                refused.set_exception(error)
                begun.put_nowait(refused)
                return
            begun.put_nowait(future)
            if sending.in_order:
                await asyncio.wait([future])
                if future.exception() is not None:
                    return
    finally:
        begun.put_nowait(None)


def _told_later(error: BaseException) -> None:
    """The future is awaited in its turn, or somebody's failure was told already."""


def _tell(output: Output, result: SendResult) -> None:
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
