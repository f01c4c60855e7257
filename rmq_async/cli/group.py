"""The command ``rmq group``: shows, creates and deletes consumer groups, moves their offsets and sends their dead letters again."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import click

from rmq_async import Admin, RocketMQError
from rmq_async.admin import OffsetChange
from rmq_async.errors import NoPermissionError
from rmq_protocol.forwarding import original_topic
from rmq_protocol.validation import is_system_group

from .options import MOMENT, ClientOptions, client_config, client_options, needs_command, pass_options, time_help
from .output import Output, plain_table
from .records import fields_of, headline, moment, visible
from .topic import with_admin

Target = int | Literal["earliest", "latest"] | datetime
_NAME: Final = click.argument("name", metavar="GROUP")
_YES: Final = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@click.group(invoke_without_command=True, short_help="Look at consumer groups, move their offsets, send dead letters again.")
@click.pass_context
def group(context: click.Context) -> int:
    """Consumer groups of a cluster."""
    return needs_command(context)


@group.command("list", short_help="Print the names of all groups.")
@click.option("--system", is_flag=True, help="Include groups of the system.")
@client_options
def list_groups(system: bool, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Print the names of the consumer groups that the brokers have settings of."""
    output = Output(as_json=as_json)

    async def work(admin: Admin) -> None:
        for name in await admin.groups():
            if system or not is_system_group(name):
                output.record({"group": name})
                output.line(name)

    return with_admin(client_config(namesrv, timeout), work)


@group.command(short_help="Print the connected members of a group.")
@_NAME
@client_options
def members(name: str, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Print the clients that consume as GROUP."""
    output = Output(as_json=as_json)

    async def work(admin: Admin) -> None:
        table = plain_table("client id", "address", "language", "brokers")
        for each in await admin.group_members(name):
            output.record(
                {
                    "group": name,
                    "client_id": each.client_id,
                    "address": each.address,
                    "language": each.language,
                    "version": each.version,
                    "brokers": each.brokers,
                }
            )
            table.add_row(each.client_id, each.address, each.language, " ".join(each.brokers))
        output.table(table)

    return with_admin(client_config(namesrv, timeout), work)


@group.command(short_help="Print how far a group is behind, by queue.")
@_NAME
@click.option("--topic", metavar="TOPIC", help="In this topic; default: in all that it has offsets for.")
@client_options
def lag(name: str, topic: str | None, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Print committed offset, end and lag of each queue of GROUP; queues of retries come last and have a sum of their own."""
    output = Output(as_json=as_json)

    async def work(admin: Admin) -> None:
        found = await admin.group_lag(name, topic)
        table = plain_table("topic", "queue", committed=True, end=True, lag=True, inflight=True, last=False)
        for queue, each in {**found.queues, **found.retry_queues}.items():
            output.record(
                {
                    "group": name,
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
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

    return with_admin(client_config(namesrv, timeout), work)


@dataclass(frozen=True, kw_only=True)
class _CreateOptions(ClientOptions):
    name: str
    retries: int
    retry_queues: int
    cluster: str | None
    broker: str | None


@group.command(short_help="Create a group, or replace its settings.")
@_NAME
@click.option(
    "--retries", type=click.IntRange(0, 2**31 - 1), default=16, show_default=True, metavar="N",
    help="Attempts after the first one; then a message is dead-lettered.",
)  # fmt: skip
@click.option(
    "--retry-queues", type=click.IntRange(1, 65535), default=1, show_default=True, metavar="N",
    help="Queues that failed messages go to; the group's retry topic gets as many.",
)  # fmt: skip
@click.option("--cluster", metavar="NAME", help="On the brokers of this cluster; default: on all brokers, of one cluster.")
@click.option("--broker", metavar="NAME", help="On this broker only.")
@client_options
@pass_options(_CreateOptions)
def create(options: _CreateOptions) -> int:
    """Create GROUP. A group that exists gets these settings, keeps its attributes, and gets the defaults for all others."""
    output, name = Output(as_json=options.as_json), options.name

    async def work(admin: Admin) -> None:
        await admin.create_group(
            name,
            cluster=options.cluster,
            broker=options.broker,
            retry_max_times=options.retries,
            retry_queue_nums=options.retry_queues,
        )
        output.record({"group": name, "retries": options.retries, "retry_queues": options.retry_queues})
        output.line(f"{name} is created")

    return with_admin(client_config(options.namesrv, options.timeout), work)


@group.command(short_help="Delete a group, its offsets, retries and dead letters.")
@_NAME
@_YES
@client_options
def delete(name: str, yes: bool, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Delete GROUP on all brokers: its settings, offsets, retries and dead letters. Refused while it has members."""
    output = Output(as_json=as_json)
    _confirm(f"Delete group {name} with its offsets, retries and dead letters?", yes=yes)

    async def work(admin: Admin) -> None:
        await admin.delete_group(name)
        output.record({"group": name, "deleted": True})
        output.line(f"{name} is deleted")

    return with_admin(client_config(namesrv, timeout), work)


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
@_YES
@client_options
@pass_options(_ResetOptions)
def reset(options: _ResetOptions) -> int:
    """Move the offsets of GROUP in TOPIC, with or without members, and print them before and after.

    Members go on from there within some 20 s. "verified" says whether the broker showed the new offset afterwards.
    """
    output, config = Output(as_json=options.as_json), client_config(options.namesrv, options.timeout)
    logging.getLogger("rmq_async").setLevel(logging.WARNING)  # says which letters it passes over
    where = options.name, options.topic, options.target

    async def plan(admin: Admin) -> None:
        _print_changes(output, await admin.reset_offsets(*where, dry_run=True), verified=False)

    async def work(admin: Admin) -> None:
        _print_changes(output, await admin.reset_offsets(*where), verified=True)

    if options.dry_run or not options.as_json:
        with_admin(config, plan)
    if options.dry_run:
        output.line("Nothing was done.")
        return 0
    _confirm(f"Reset the offsets of group {options.name}?", yes=options.yes)  # without a loop, which would hold Ctrl-C back
    return with_admin(config, work)


@group.command(short_help="Give a group the offsets of another one.")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.argument("topic", metavar="TOPIC")
@_YES
@client_options
def clone(source: str, target: str, topic: str, yes: bool, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Give group TO the offsets that group FROM has in TOPIC. Refused while TO has members."""
    output = Output(as_json=as_json)
    _confirm(f"Replace the offsets of group {target} in topic {topic} by those of {source}?", yes=yes)

    async def work(admin: Admin) -> None:
        _print_changes(output, await admin.clone_offsets(source, target, topic), verified=True)

    return with_admin(client_config(namesrv, timeout), work)


@group.command("dead-letters", short_help="Print the dead letters of a group.")
@_NAME
@click.option("--limit", type=click.IntRange(1, 65535), default=100, show_default=True, metavar="N", help="Messages, at most.")
@client_options
def dead_letters(name: str, limit: int, namesrv: str | None, timeout: float, as_json: bool) -> int:
    """Print the dead letters of GROUP that were not sent again: queue, offset, time, id, tags, keys, and each one's first topic."""
    output = Output(as_json=as_json)

    async def work(admin: Admin) -> None:
        found = await admin.dead_letters(name, limit=limit)
        for message in found:
            output.record(fields_of(message))
            output.line(f"{headline(message)} of={visible(original_topic(message.topic, message.properties), kept='')}")
        if not found:
            await _check_exists(admin, name)
            output.trouble(f"group {name} has no dead letters that were not sent again")

    return with_admin(client_config(namesrv, timeout), work)


@dataclass(frozen=True, kw_only=True)
class _ResendOptions(ClientOptions):
    name: str
    limit: int | None
    skip_topics: tuple[str, ...]
    skip_damaged: bool
    yes: bool


@group.command(short_help="Send the dead letters of a group to their topics again.")
@_NAME
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Messages, at most; default: all.")
@click.option(
    "--skip-topic", "skip_topics", multiple=True, metavar="TOPIC",
    help="Pass over the letters of this topic, for good; may be given more than once.",
)  # fmt: skip
@click.option("--skip-damaged", is_flag=True, help="Pass over letters that cannot be read, for good.")
@_YES
@client_options
@pass_options(_ResendOptions)
def resend(options: _ResendOptions) -> int:
    """Send the dead letters of GROUP to the topics that they were first sent to.

    All groups that subscribe to these topics get them. The next call continues after the letters that were sent.
    A letter whose topic was deleted ends it, and the next call begins with that letter, unless its topic is given as
    --skip-topic; so does a damaged one without --skip-damaged. What was passed over goes to stderr. Letters of the last
    second may be missing; call again.
    """
    output, config = Output(as_json=options.as_json), client_config(options.namesrv, options.timeout)
    logging.getLogger("rmq_async").setLevel(logging.WARNING)  # says which letters it passes over
    _confirm(
        f"Send the dead letters of group {options.name} to their topics again, where all groups get them?", yes=options.yes
    )

    async def work(admin: Admin) -> None:
        try:
            count = await admin.resend_dead_letters(
                options.name, limit=options.limit, skip_topics=options.skip_topics, skip_damaged=options.skip_damaged
            )
        except RocketMQError as error:
            raise click.ClickException("; ".join((str(error), *getattr(error, "__notes__", ())))) from None
        if not count:
            await _check_exists(admin, options.name)
        output.record({"group": options.name, "sent": count})
        output.line(f"{count} sent again")

    return with_admin(config, work)


async def _check_exists(admin: Admin, name: str) -> None:
    """Raise ClickException for a group that no broker knows: its name is probably misspelt.

    A user who may not list groups gets no such error.
    """
    with suppress(NoPermissionError):
        if name not in await admin.groups():
            raise click.ClickException(f"there is no group {name}; check the name, rmq group list prints all")


def _confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal. Raises click.Abort if the user declines, UsageError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: give --yes")
    click.confirm(question, abort=True, err=True)


def _print_changes(output: Output, changes: Sequence[OffsetChange], *, verified: bool) -> None:
    table = plain_table("topic", "queue", before=True, after=True, verified=False)
    for each in changes:
        output.record(
            {
                "topic": each.queue.topic,
                "broker": each.queue.broker_name,
                "queue_id": each.queue.queue_id,
                "before": each.before,
                "after": each.after,
                "verified": each.verified,
            }
        )
        before = "-" if each.before is None else str(each.before)
        place = f"{each.queue.broker_name}:{each.queue.queue_id}"
        table.add_row(each.queue.topic, place, before, str(each.after), ("yes" if each.verified else "no") if verified else "")
    output.table(table)
