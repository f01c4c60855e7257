"""The command ``rmq message``: finds single messages by id or key."""

from __future__ import annotations

from datetime import datetime

import click

from rmq_async import Admin, MessageExt

from .admin_command import admin_command
from .options import TIME, number_option, time_help
from .output import Output
from .records import described, fields_of
from .running import needs_command


@click.group(invoke_without_command=True, short_help="Find messages by id or key.")
@click.pass_context
def message(context: click.Context) -> int:
    """Find single messages by id or key."""
    return needs_command(context)


@message.command(short_help="Print the message with an id.")
@click.argument("topic")
@click.argument("msg_id", metavar="ID")
@admin_command()
async def view(admin: Admin, output: Output, topic: str, msg_id: str) -> None:
    """Print the message of TOPIC with ID: the unique id from its sender, or the offset id from a broker."""
    _print(output, await admin.view_message(topic, msg_id))


@message.command(short_help="Print the messages with a key.")
@click.argument("topic")
@click.argument("key")
@number_option("--max", "limit", most=65535, default=32, help="The last N.")
@click.option("--begin", type=TIME, help=f"Stored then or later: {time_help}.")
@click.option("--end", type=TIME, help="Stored then or before.")
@admin_command()
async def query(
    admin: Admin, output: Output, topic: str, key: str, limit: int, begin: datetime | None, end: datetime | None
) -> None:
    """Print the messages of TOPIC with KEY among their keys, sorted by store time. The exit code is 1 if there is no such
    message.
    """
    found = await admin.query_message(topic, key, max_num=limit, begin=begin, end=end)
    for number, each in enumerate(found):
        if number:
            output.line()
        _print(output, each)
    if not found:
        raise click.ClickException(
            f"no message of topic {topic} with key {key!r} was found; check topic and key, --begin and --end if they are "
            "given, and whether the message has been deleted"
        )


def _print(output: Output, found: MessageExt) -> None:
    output.record(fields_of(found))
    for line in described(found):
        output.line(line)
