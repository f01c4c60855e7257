"""``rmq pull``: the messages of a topic, to standard output."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime

import click

from rmq_async import ClientConfig, MessageQueue, PullConsumer
from rmq_async.client.time_search import TOOLS_GROUP

from . import INTERRUPTED
from .options import MOMENT, QUEUE, Interrupted, client_config, client_options, moment_help, run
from .output import Output
from .records import body_bytes, fields_of, headline

__all__ = ["pull"]

Place = str | datetime | Mapping[MessageQueue, int]


@dataclass(frozen=True)
class _Reading:
    topic: str
    start: Place
    end: Place | None
    tags: str
    queues: tuple[MessageQueue, ...] | None
    limit: int | None


@click.command(short_help="Print the messages of a topic.")
@click.argument("topic")
@click.option("--from", "start", type=MOMENT, default="earliest", show_default=True, help=f"Where to begin: {moment_help}.")
@click.option("--to", "end", type=MOMENT, help="Where to end, in the same forms; default: latest.")
@click.option("--follow", is_flag=True, help="Go on for ever, until Ctrl-C.")
@click.option("--max", "limit", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("--tags", default="*", show_default=True, metavar="TAGS", help="Those with one of these tags: a || b.")
@click.option("--queue", "queues", type=QUEUE, multiple=True, help="This queue only; may be given again.")
@click.option("--verbose", "-v", is_flag=True, help="Before each body a line with its place, time, id, tags and keys.")
@click.option("--group", default=TOOLS_GROUP, show_default=True, help="Consumer group; nothing is committed for it.")
@client_options
def pull(
    topic: str,
    start: str | int | datetime,
    end: str | int | datetime | None,
    follow: bool,
    limit: int | None,
    tags: str,
    queues: tuple[tuple[str, int], ...],
    verbose: bool,
    group: str,
    namesrv: str | None,
    timeout: float,
    as_json: bool,
) -> int:
    """Print the messages of TOPIC: bodies as they are, one a line, or with --json all that is known of each.

    Each queue comes in its order, the queues as their answers come. A time without a zone is local time.
    """
    if follow and end is not None:
        raise click.UsageError("--follow has no end, it does not go with --to")
    if end == "earliest":
        raise click.UsageError("--to earliest leaves nothing to print")
    chosen = tuple(MessageQueue(topic, *queue) for queue in queues) or None
    last: Place | None = None if follow else _place("--to", "latest" if end is None else end, chosen)
    reading = _Reading(topic, _place("--from", start, chosen), last, tags, chosen, limit)
    config = client_config(namesrv, timeout)
    if follow:
        logging.getLogger("rmq_async").setLevel(logging.WARNING)  # what is waited out is worth a line
    try:
        return run(_pull(reading, group, config, Output(as_json=as_json), verbose))
    except Interrupted:
        return INTERRUPTED


def _place(option: str, given: str | int | datetime, queues: tuple[MessageQueue, ...] | None) -> Place:
    if not isinstance(given, int):
        return given
    if queues is None or len(queues) != 1:
        raise click.UsageError(f"{option} {given} is an offset and needs one --queue (epoch seconds are written @{given})")
    return {queues[0]: given}


async def _pull(reading: _Reading, group: str, config: ClientConfig, output: Output, verbose: bool) -> int:
    count = 0
    async with PullConsumer(group, client=config) as consumer:
        found = consumer.read(
            reading.topic,
            start=reading.start,  # type: ignore[arg-type]  # of the words those that MOMENT lets through
            end=reading.end,  # type: ignore[arg-type]
            tags=reading.tags,
            queues=reading.queues,
        )
        async with aclosing(found) as messages:
            async for message in messages:
                if verbose:
                    output.line(headline(message))
                output.body(body_bytes(message))
                output.record(fields_of(message))
                count += 1
                if count == reading.limit:
                    break
    return 0
