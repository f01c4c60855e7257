"""The command ``rmq group``: shows, creates and deletes consumer groups, moves their offsets and sends their dead letters again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

import click
import msgspec

from rmq_async import Admin, RocketMQError
from rmq_async.admin import OffsetChange
from rmq_async.errors import NoPermissionError
from rmq_protocol.forwarding import original_topic
from rmq_protocol.validation import is_system_group

from .admin_command import admin_command, confirm, with_admin, yes_option
from .options import MOMENT, PROPERTY, ClientOptions, client_config, client_options, number_option, pass_options, time_help
from .output import Output, plain_table
from .records import fields_of, fields_of_queue, headline, moment, visible
from .running import needs_command

Target = int | Literal["earliest", "latest"] | datetime
_NAME: Final = click.argument("name", metavar="GROUP")


@click.group(invoke_without_command=True, short_help="Look at consumer groups, move their offsets, send dead letters again.")
@click.pass_context
def group(context: click.Context) -> int:
    """Consumer groups of a cluster."""
    return needs_command(context)


@group.command("list", short_help="Print the names of all groups.")
@click.option("--system", is_flag=True, help="Include groups of the system.")
@admin_command()
async def list_groups(admin: Admin, output: Output, system: bool) -> None:
    """Print the names of the consumer groups for which the brokers have settings."""
    for name in await admin.groups():
        if system or not is_system_group(name):
            output.record({"group": name})
            output.line(name)


@group.command(short_help="Print the connected members of a group.")
@_NAME
@admin_command()
async def members(admin: Admin, output: Output, name: str) -> None:
    """Print the clients that consume as GROUP."""
    table = plain_table("client id", "address", "language", "brokers")
    for each in await admin.group_members(name):
        output.record({"group": name, **msgspec.structs.asdict(each)})
        table.add_row(each.client_id, each.address, each.language, " ".join(each.brokers))
    output.table(table)


@group.command(short_help="Print how far a group is behind, by queue.")
@_NAME
@click.option("--topic", metavar="TOPIC", help="In this topic; default: in all that it has offsets for.")
@admin_command()
async def lag(admin: Admin, output: Output, name: str, topic: str | None) -> None:
    """Print the committed offset, the end and the lag of each queue of GROUP. Retry queues come last and have a
    separate sum.
    """
    found = await admin.group_lag(name, topic)
    table = plain_table("topic", "queue", committed=True, end=True, lag=True, inflight=True, last=False)
    for queue, each in {**found.queues, **found.retry_queues}.items():
        output.record(
            {
                "group": name,
                **fields_of_queue(queue),
                "committed": each.committed,
                "end": each.end,
                "lag": each.messages,
                "inflight": each.inflight,
                "last_store_time_ms": each.last_store_time_ms,
                "retry": queue in found.retry_queues,
            }
        )
        place, numbers = f"{queue.broker_name}:{queue.queue_id}", (each.committed, each.end, each.messages, each.inflight)
        table.add_row(queue.topic, place, *map(str, numbers), moment(each.last_store_time_ms))
    output.table(table)
    output.line(f"{found.messages} messages and {found.retries} retries to go")


@group.command(short_help="Create a group, or replace its settings.")
@_NAME
@number_option(
    "--retries", least=0, most=2**31 - 1, default=16, help="Attempts after the first one; then a message is dead-lettered."
)
@number_option(
    "--retry-queues", most=65535, default=1,
    help="Queues that failed messages go to; the group's retry topic gets as many.",
)  # fmt: skip
@click.option(
    "--attribute", "attributes", type=PROPERTY, multiple=True, help="Such as lite.bind.topic=TOPIC; may be given again."
)
@click.option(
    "--cluster", metavar="NAME", help="On the brokers of this cluster; default: on all brokers, if there is one cluster."
)
@click.option("--broker", metavar="NAME", help="On this broker only.")
@admin_command()
async def create(
    admin: Admin,
    output: Output,
    name: str,
    retries: int,
    retry_queues: int,
    attributes: tuple[tuple[str, str], ...],
    **where: Any,
) -> None:
    """Create GROUP. An existing group keeps its attributes and gets these settings; all other settings are reset to their
    defaults.
    """
    await admin.create_group(name, retry_max_times=retries, retry_queue_nums=retry_queues, attributes=dict(attributes), **where)
    output.record({"group": name, "retries": retries, "retry_queues": retry_queues})
    output.line(f"{name} is created")


@group.command(short_help="Delete a group, its offsets, retries and dead letters.")
@_NAME
@admin_command(asks="Delete group {name} with its offsets, retries and dead letters?")
async def delete(admin: Admin, output: Output, name: str) -> None:
    """Delete GROUP on all brokers: its settings, offsets, retries and dead letters. The command is refused while GROUP has
    members.
    """
    await admin.delete_group(name)
    output.record({"group": name, "deleted": True})
    output.line(f"{name} is deleted")


@dataclass(frozen=True, kw_only=True)
class _ResetOptions(ClientOptions):
    name: str
    topic: str
    target: Target
    dry_run: bool
    yes: bool


@group.command(short_help="Move the offsets of a group.")
@_NAME
@click.argument("topic", metavar="TOPIC")
@click.option("--to", "target", type=MOMENT, required=True, help=f"earliest, latest, {time_help}; an offset for all queues.")
@click.option("--dry-run", is_flag=True, help="Only print what would change.")
@yes_option
@client_options
@pass_options(_ResetOptions)
def reset(options: _ResetOptions) -> int:
    """Move the offsets of GROUP in TOPIC, with or without members, and print them before and after.

    Members continue at the new offsets within about 20 s. "verified" tells whether the broker showed the new offset afterwards.
    """
    output, config = Output(as_json=options.as_json), client_config(options.namesrv, options.timeout)
    logging.getLogger("rmq_async").setLevel(logging.WARNING)  # show warnings that concern the reset

    async def work(admin: Admin, *, dry_run: bool) -> None:
        changes = await admin.reset_offsets(options.name, options.topic, options.target, dry_run=dry_run)
        _print_changes(output, changes, verified=not dry_run)

    if options.dry_run or not options.as_json:
        with_admin(config, partial(work, dry_run=True))
    if options.dry_run:
        output.line("Nothing was done.")
        return 0
    confirm(f"Reset the offsets of group {options.name}?", yes=options.yes)
    with_admin(config, partial(work, dry_run=False))
    return 0


@group.command(short_help="Give a group the offsets of another one.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("topic", metavar="TOPIC")
@admin_command(asks="Replace the offsets of group {target} in topic {topic} by those of {source}?")
async def clone(admin: Admin, output: Output, source: str, target: str, topic: str) -> None:
    """Give group TO the offsets that group FROM has in TOPIC. The command is refused while TO has members."""
    _print_changes(output, await admin.clone_offsets(source, target, topic), verified=True)


@group.command("dead-letters", short_help="Print the dead letters of a group.")
@_NAME
@number_option("--limit", most=65535, default=100, help="Messages, at most.")
@admin_command()
async def dead_letters(admin: Admin, output: Output, name: str, limit: int) -> None:
    """Print the dead letters of GROUP that were not sent again: queue, offset, time, id, tags, keys, and original topic."""
    found = await admin.dead_letters(name, limit=limit)
    for message in found:
        output.record(fields_of(message))
        output.line(f"{headline(message)} of={visible(original_topic(message.topic, message.properties), kept='')}")
    if not found:
        await _check_exists(admin, name)
        output.trouble(f"group {name} has no dead letters that were not sent again")


@group.command(short_help="Send the dead letters of a group to their topics again.")
@_NAME
@number_option("--limit", help="Messages, at most; default: all.")
@click.option(
    "--skip-topic", "skip_topics", multiple=True, metavar="TOPIC",
    help="Skip the letters of this topic permanently; may be given more than once.",
)  # fmt: skip
@click.option("--skip-damaged", is_flag=True, help="Skip letters that cannot be read, permanently.")
@admin_command(asks="Send the dead letters of group {name} to their topics again, where all groups get them?")
async def resend(
    admin: Admin, output: Output, name: str, limit: int | None, skip_topics: tuple[str, ...], skip_damaged: bool
) -> None:
    """Send the dead letters of GROUP to the topics that they were first sent to.

    All groups that subscribe to these topics get the letters. The next call continues after the letters that were sent. A
    letter whose topic was deleted ends the command, and the next call begins with that letter, unless its topic is given as
    --skip-topic. The same applies to a damaged letter without --skip-damaged. Letters that were skipped are listed on stderr.
    Letters that were stored in the last second may be missing; repeat the command for them.
    """
    logging.getLogger("rmq_async").setLevel(logging.WARNING)  # the library logs at WARNING which letters it skips
    try:
        count = await admin.resend_dead_letters(name, limit=limit, skip_topics=skip_topics, skip_damaged=skip_damaged)
    except RocketMQError as error:
        raise click.ClickException("; ".join((str(error), *getattr(error, "__notes__", ())))) from None
    if not count:
        await _check_exists(admin, name)
    output.record({"group": name, "sent": count})
    output.line(f"{count} sent again")


async def _check_exists(admin: Admin, name: str) -> None:
    """Raise ClickException if no broker knows the group, because its name is probably misspelled.

    Do nothing if the user may not list groups.
    """
    with suppress(NoPermissionError):
        if name not in await admin.groups():
            raise click.ClickException(f"there is no group {name}; check the name, rmq group list prints all")


def _print_changes(output: Output, changes: Sequence[OffsetChange], *, verified: bool) -> None:
    table = plain_table("topic", "queue", before=True, after=True, verified=False)
    for each in changes:
        changed = {"before": each.before, "after": each.after, "verified": each.verified}
        output.record({**fields_of_queue(each.queue), **changed})
        before = "-" if each.before is None else str(each.before)
        place = f"{each.queue.broker_name}:{each.queue.queue_id}"
        table.add_row(each.queue.topic, place, before, str(each.after), ("yes" if each.verified else "no") if verified else "")
    output.table(table)
