"""Turns functions that take a started admin into commands: those of ``rmq topic``, ``rmq group`` and ``rmq message``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import click

from rmq_async import Admin, ClientConfig

from .options import Command, client_config, client_options
from .output import Output
from .running import run

Work = Callable[..., Awaitable[None]]


def admin_command(*, asks: str | None = None) -> Callable[[Work], Callable[..., None]]:
    """Return a decorator that turns a coroutine function into a command with the options of a connection.

    The function gets a started admin, the output, and the values of the command's own options and arguments as keyword
    arguments.

    Args:
        asks: A question that the user must answer with yes first, with names of options and arguments in braces. The command
            gets the option --yes.
    """

    def decorate(work: Work) -> Callable[..., None]:
        @wraps(work)
        def call(*, namesrv: str | None, timeout: float, as_json: bool, yes: bool = True, **given: Any) -> None:
            config = client_config(namesrv, timeout)
            if asks is not None:  # outside of a loop, because a loop would delay Ctrl-C
                confirm(asks.format(**given), yes=yes)
            with_admin(config, lambda admin: work(admin, Output(as_json=as_json), **given))

        command = client_options(call)
        return command if asks is None else yes_option(command)

    return decorate


def with_admin(config: ClientConfig, work: Callable[[Admin], Awaitable[None]]) -> None:
    """Run ``work`` with a started admin."""

    async def started() -> None:
        async with Admin(client=config) as admin:
            await work(admin)

    run(started())


def yes_option(command: Command) -> Command:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the question on the terminal. Raise click.Abort if the user declines, and UsageError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} There is no terminal to ask on: give --yes")
    click.confirm(question, abort=True, err=True)
