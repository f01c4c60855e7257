"""Defines ``rmq consume`` and its options."""

from __future__ import annotations

import logging

import click

from ..options import MOMENT, Seconds, client_config, client_options, pass_options, run
from .member import consume_messages
from .settings import ConsumeOptions

__all__ = ["consume"]


@click.command(short_help="Consume a topic as a group: print, or run a command for each message.")
@click.argument("topic")
@click.option("--group", required=True, metavar="GROUP", help="Consumer group whose offsets are committed.")
@click.option(
    "--from", "start", type=MOMENT, default="latest", show_default=True,
    help="Where a group without offsets begins: earliest, latest or a time as for rmq pull.",
)  # fmt: skip
@click.option("--tags", default="*", show_default=True, metavar="TAGS", help="Those with one of these tags: a || b.")
@click.option("--sql", metavar="CONDITION", help="Those whose properties meet an SQL92 condition (enablePropertyFilter).")
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@click.option("--exec", "command", metavar="COMMAND", help="Run this by the shell for each message, see above.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N", help="Messages at a time."
)
@click.option(
    "--exec-timeout", type=Seconds(0.0, 86400.0, min_open=True), default=900.0, show_default=True, metavar="SECONDS",
    help="Time of one command; then it is ended and its message is tried again.",
)  # fmt: skip
@click.option("--verbose", "-v", is_flag=True, help="Before each body a line with its place, time, id, tags and keys.")
@client_options
@pass_options(ConsumeOptions)
def consume(options: ConsumeOptions) -> int:
    """Consume TOPIC as a member of a group: print each message as rmq pull does, and commit what was printed.

    With --exec a command gets the body as its input and decides by its exit code: 0 the message is done, 65 (EX_DATAERR) it is
    dead-lettered, any other, such as 75 (EX_TEMPFAIL), it is tried again later, by the group's retries. 126 and 127, with which
    the shell says that it cannot run the command, end rmq consume too. Messages wait while the machine has no room for a process,
    and stay if it lets none start, which ends rmq consume. The command finds in its environment RMQ_TOPIC, RMQ_GROUP, RMQ_BROKER,
    RMQ_QUEUE_ID, RMQ_QUEUE_OFFSET, RMQ_MSG_ID, RMQ_TAGS, RMQ_KEYS (separated by spaces), RMQ_SHARDING_KEY, RMQ_PROPERTIES (JSON),
    RMQ_ATTEMPT (from 1 on), RMQ_BORN_TIME_MS and RMQ_STORE_TIME_MS. With --json each outcome is an object on stdout, and what
    commands print goes to stderr.

    The first SIGINT or SIGTERM lets what has begun end, and commits; a second one ends running commands, whose messages come
    again. A summary goes to stderr. Exit code 0 after --count and after the first signal, 130 or 143 after the second.
    """
    options.check()
    config = client_config(options.namesrv, options.timeout)
    logging.getLogger("rmq_async").setLevel(logging.WARNING)  # a command without an end reports what it waits out
    return run(consume_messages(options, config))
