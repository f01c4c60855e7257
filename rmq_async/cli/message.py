"""The command ``rmq message``: finds single messages by id or key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import click

from rmq_async import Admin, MessageExt

from .options import TIME, ClientOptions, client_config, client_options, needs_command, pass_options, time_help
from .output import Output
from .records import described, fields_of
from .topic import with_admin


@click.group(invoke_without_command=True, short_help="Find messages by id or key.")
@click.pass_context
def message(context: click.Context) -> int:
    """Find single messages by id or key."""
    return needs_command(context)


@message.command(short_help="Print the message with an id.")
@click.argument("topic")
@click.argument("msg_id", metavar="ID")
@client_options
def view(topic: str, msg_id: str, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Print the message of TOPIC with ID: the id that its sender gave, or the offset id that a broker gave."""
    output = Output(as_json=as_json)

    async def work(admin: Admin) -> None:
        _print(output, await admin.view_message(topic, msg_id))

    return with_admin(client_config(namesrv, timeout), work)


@dataclass(frozen=True, kw_only=True)
class _QueryOptions(ClientOptions):
    topic: str
    key: str
    limit: int
    begin: datetime | None
    end: datetime | None


@message.command(short_help="Print the messages with a key.")
@click.argument("topic")
@click.argument("key")
@click.option("--max", "limit", type=click.IntRange(1, 65535), default=32, show_default=True, metavar="N", help="The last N.")
@click.option("--begin", type=TIME, help=f"Stored then or later: {time_help}.")
@click.option("--end", type=TIME, help="Stored then or before.")
@client_options
@pass_options(_QueryOptions)
def query(options: _QueryOptions) -> int:
    """Print the messages of TOPIC with KEY among their keys, by store time. Exit code 1 if there is none."""
    output = Output(as_json=options.as_json)
    topic, key = options.topic, options.key

    async def work(admin: Admin) -> None:
        found = await admin.query_message(topic, key, max_num=options.limit, begin=options.begin, end=options.end)
        for number, each in enumerate(found):
            if number:
                output.line()
            _print(output, each)
        if not found:
            raise click.ClickException(
                f"no message of topic {topic} with key {key!r} was found; check both, --begin and --end if they are given, and "
                "that the message is not deleted"
            )

    return with_admin(client_config(options.namesrv, options.timeout), work)


def _print(output: Output, found: MessageExt) -> None:
    output.record(fields_of(found))
    for line in described(found):
        output.line(line)
