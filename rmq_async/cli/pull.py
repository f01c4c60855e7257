"""The command ``rmq pull``: prints the messages of a topic."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from rmq_async import MessageQueue, PullConsumer
from rmq_async.client import TOOLS_GROUP

from .options import MOMENT, QUEUE, ClientOptions, client_config, client_options, moment_help, number_option, pass_options
from .output import Output
from .records import body_bytes, fields_of, headline
from .running import Interrupted, run

Place = str | datetime | Mapping[MessageQueue, int]

_MISSING: Final = "rmq_async.reading.reader"
"""The logger that reports offsets without a message: the message was deleted before the read, or is missing although the broker
reported a higher end offset.
"""


@dataclass(frozen=True, kw_only=True)
class _PullOptions(ClientOptions):
    topic: str
    start: str | int | datetime
    end: str | int | datetime | None
    follow: bool
    limit: int | None
    tags: str
    queues: tuple[tuple[str, int], ...]
    verbose: bool
    group: str


@click.command(short_help="Print the messages of a topic.")
@click.argument("topic")
@click.option("--from", "start", type=MOMENT, default="earliest", show_default=True, help=f"Where to begin: {moment_help}.")
@click.option("--to", "end", type=MOMENT, help="Where to end, in the same forms; default: latest.")
@click.option("--follow", is_flag=True, help="Wait for further messages, until Ctrl-C.")
@number_option("--max", "limit", help="End after N messages.")
@click.option("--tags", default="*", show_default=True, metavar="TAGS", help="Messages with one of these tags: a || b.")
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="This queue only; may be given again.")
@click.option(
    "--verbose", "-v", is_flag=True, help="Print a line with queue, offset, time, id, tags and keys before each body."
)
@click.option("--group", default=TOOLS_GROUP, show_default=True, help="Consumer group; nothing is committed for it.")
@client_options
@pass_options(_PullOptions)
def pull(options: _PullOptions) -> int:
    """Print the messages of TOPIC: one body per line or, with --json, all fields of each message.

    Bodies are printed unchanged; on a terminal, their control characters are made visible. Messages of one queue are printed in
    their order; messages of different queues are printed as the brokers respond. A time without a zone is local time. The
    offsets of messages that are deleted before they are read are printed on stderr. With --follow, the number of printed
    messages is printed on stderr after Ctrl-C.
    """
    chosen = _range(options)
    config = client_config(options.namesrv, options.timeout)
    if options.follow:
        # a command that runs indefinitely must report the failures that it waits out
        logging.getLogger("rmq_async").setLevel(logging.WARNING)
    missing, output, printed = logging.getLogger(_MISSING), Output(as_json=options.as_json), 0

    async def print_messages() -> int:
        nonlocal printed
        async with (
            PullConsumer(options.group, client=config) as consumer,
            aclosing(consumer.read(options.topic, tags=options.tags, **chosen)) as messages,
        ):
            async for message in messages:
                if options.verbose:
                    output.line(headline(message))
                output.body(body_bytes(message))
                output.record(fields_of(message))
                printed += 1
                if printed == options.limit:
                    break
        return 0

    before = missing.level
    missing.setLevel(logging.WARNING)
    try:
        return run(print_messages())
    except Interrupted as error:
        if options.follow:
            output.trouble(f"{printed} messages")
        return error.exit_code
    finally:
        missing.setLevel(before)


def _range(options: _PullOptions) -> dict[str, Any]:
    """Return the arguments of ``PullConsumer.read`` that determine which part of the topic to print.

    Raises:
        UsageError: For options that contradict each other.
    """
    if options.follow and options.end is not None:
        raise click.UsageError("--follow has no end; leave out --to")
    if options.end == "earliest":
        raise click.UsageError("--to earliest leaves no message to print; give a later end")
    queues = tuple(MessageQueue(options.topic, *queue) for queue in options.queues) or None
    end = None if options.follow else _place("--to", "latest" if options.end is None else options.end, queues)
    return {"start": _place("--from", options.start, queues), "end": end, "queues": queues}


def _place(option: str, given: str | int | datetime, queues: tuple[MessageQueue, ...] | None) -> Place:
    if not isinstance(given, int):
        return given
    if queues is None or len(queues) != 1:
        raise click.UsageError(f"{option} {given} is an offset and needs one --queue (epoch seconds are written @{given})")
    return {queues[0]: given}
