"""Defines ``rmq outbox``: its commands, their options, and the checks before a command connects."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

import rmq_async
from rmq_async.config import check_group

from ..options import AGE, client_config, client_options, json_option, number_option, pass_options, seconds_option
from ..output import Output
from ..running import FAILED, needs_command, needs_extra, run
from .settings import RelayOptions

if TYPE_CHECKING:
    from rmq_async.outbox import Store

DATABASE_ENVIRONMENT: Final = "RMQ_OUTBOX_DATABASE"
_NEEDED: Final = ("sqlalchemy", "greenlet", "aiosqlite", "asyncpg")
_LARGEST_ID: Final = (1 << 63) - 1
_DAY: Final = 86400.0

Command = TypeVar("Command", bound=Callable[..., Any])


def _table_options(command: Command) -> Command:
    table = click.option("--table", default="rmq_outbox", show_default=True, metavar="NAME", help="Or SCHEMA.NAME.")
    return click.option(
        "--database",
        metavar="URL",
        help=f"postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE; default: ${DATABASE_ENVIRONMENT}.",
    )(table(command))


def _seconds(option: str, default: float, help_text: str) -> Callable[[Command], Command]:
    return seconds_option(option, most=_DAY, min_open=True, default=default, help=help_text)


def _database_url(database: str | None) -> str:
    """Return the URL from the option or, without the option, from the environment.

    Raises:
        UsageError: If neither is set.
        ClickException: If the extra is not installed.
    """
    found = os.environ.get(DATABASE_ENVIRONMENT) if database is None else database
    if not found:
        raise click.UsageError(f"no database is known: give --database or set {DATABASE_ENVIRONMENT}")
    needs_extra("outbox", _NEEDED)
    return found


def _table_command(work: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """Turn a coroutine function that returns an exit code into a command with the options of a table.

    The function gets the store of the table, the output, and the values of the command's own options and arguments as keyword
    arguments.
    """

    @wraps(work)
    def call(*, database: str | None, table: str, as_json: bool, **given: Any) -> int:
        url = _database_url(database)
        from .database import connected

        async def on_table() -> int:
            async with connected(url, table) as (_, store):
                return await work(store, Output(as_json=as_json), **given)

        return run(on_table())

    return _table_options(json_option(call))


@click.group(invoke_without_command=True, short_help="Relay the messages of an outbox, and look after its table.")
@click.pass_context
def outbox(context: click.Context) -> int:
    """The outbox of a service: messages that are stored as rows in its database until they are sent.

    The commands need the extra `outbox`. Pass a URL with a password through the environment instead of the arguments, because
    other users of a machine can see the arguments.
    """
    return needs_command(context)


@outbox.command(short_help="Print how many messages are pending, sent and failed.")
@seconds_option("--fail-above", help="Exit code 1 if a message is pending for longer.")
@_table_command
async def status(store: Store, output: Output, fail_above: float | None) -> int:
    """Print how many messages are pending and for how long, how many are sent but not purged, and how many have failed for
    good.
    """
    from .report import print_status

    found = await store.status()
    print_status(output, found)
    if fail_above is None or found.oldest_age <= fail_above:
        return 0
    output.trouble(f"outbox: a message is pending for {found.oldest_age:,.1f} s, the limit is {fail_above:g} s")
    return FAILED


@outbox.command(short_help="Send what is pending, until SIGTERM or Ctrl-C.")
@click.option("--drain", is_flag=True, help="End when nothing is left that can be sent.")
@_seconds("--every", 10.0, "Time between two lines of progress.")
@click.option("--group", default="outbox-relay", show_default=True, help="Producer group.")
@number_option("--batch-size", most=10_000, default=256, help="Rows read at a time.")
@_seconds("--lease", 30.0, "Time for which a claimed row is reserved. After that, another relay may send it.")
@_seconds("--poll-interval", 1.0, "Time between two queries for messages, and before a second attempt.")
@_seconds("--stuck-after", 60.0, "Age at which a message that is not sent is reported.")
@_table_options
@client_options
@pass_options(RelayOptions)
def relay(options: RelayOptions) -> int:
    """Send the messages of an outbox, alone or beside other relays, until SIGTERM or Ctrl-C. At the end, rows whose sending has
    not begun are released.

    The command waits for a cluster that is not available yet, and for a database that becomes unavailable later. It prints its
    progress to stderr or, with --json, to stdout: the messages sent by this process, their rate, and the contents of the table.
    It also prints a line for each stuck message, every ten minutes. The last line, on stdout, has the totals.

    With --drain, the exit code is 1 if a message failed for good in the meantime, if a message waits behind a failed message
    with the same sharding key, or if a signal arrived first.
    """
    url = _database_url(options.database)
    check_group(options.group)
    client = client_config(options.namesrv, options.timeout)
    # a command that runs indefinitely must report the failures that it waits out
    logging.getLogger("rmq_async").setLevel(logging.WARNING)
    from .relay import run_relay

    return rmq_async.run(run_relay(url, options, client, Output(as_json=options.as_json)))


def _check_chosen(context: click.Context, _: click.Parameter, ids: tuple[int, ...]) -> tuple[int, ...]:
    if ids and context.params["all_failed"]:
        raise click.UsageError("give IDs of rows or --all-failed, not both")
    if not ids and not context.params["all_failed"]:
        raise click.UsageError("no rows to retry are named: give their IDs or --all-failed")
    return ids


@outbox.command(short_help="Send failed messages again.")
@click.argument("ids", nargs=-1, type=click.IntRange(1, _LARGEST_ID), metavar="[ID]...", callback=_check_chosen)
# eager, so that it is known when IDs are checked
@click.option("--all-failed", is_flag=True, is_eager=True, help="All messages that have failed for good.")
@_table_command
async def retry(store: Store, output: Output, ids: tuple[int, ...], all_failed: bool) -> int:
    """Make messages due now: the rows with these IDs or, with --all-failed, all rows that have failed for good.

    A row with an ID must be pending or have failed for good. The exit code is 1 if a row is neither, because it is not in the
    table, was sent, or is being sent.
    """
    chosen = sorted(set(ids))
    count = await store.retry(None if all_failed else chosen)
    output.record({"retried": count})
    output.line(f"{count:,} due again")
    if all_failed or count == len(chosen):
        return 0
    output.trouble(
        f"outbox: {len(chosen) - count:,} of {len(chosen):,} rows stay as they are: missing, sent already, or being sent"
    )
    return FAILED


@outbox.command(short_help="Delete messages that were sent long ago.")
@click.option("--older-than", type=AGE, required=True, help="Such as 7d, 12h, 30m or 90s: time since they were sent or failed.")
@click.option("--failed", is_flag=True, help="Delete FAILED messages instead of SENT ones; they are lost.")
@_table_command
async def purge(store: Store, output: Output, older_than: float, failed: bool) -> int:
    """Delete messages that were sent or, with --failed, failed for good longer than --older-than ago, a thousand per
    transaction. There is no confirmation.
    """
    count = await store.purge(older_than, failed=failed)
    output.record({"purged": count})
    output.line(f"{count:,} deleted")
    return 0
