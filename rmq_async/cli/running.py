"""Runs the coroutine of a command until a signal, and refuses commands that cannot run."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from importlib import util
from typing import Any, Final, TypeVar

import click

import rmq_async

from .signals import end_at_once, exit_code_of, signals_handled

T = TypeVar("T")

FAILED: Final = 1
WRONG_USE: Final = 2


def needs_command(context: click.Context) -> int:
    """Print the help of a group on stderr if it was called without a command.

    Return the exit code: the code for wrong usage in that case, and otherwise 0.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        return WRONG_USE
    return 0


def needs_extra(extra: str, packages: Iterable[str]) -> None:
    """Raise ClickException if one of the packages is not installed. No package is imported."""
    missing = [package for package in packages if not _is_installed(package)]
    if missing:
        raise _NotInstalled(
            f"{missing[0]} is not installed; pip install 'rmq-async[{extra}]' installs all packages that this command needs"
        )


def is_installed(packages: Iterable[str]) -> bool:
    """Return whether all of the packages are installed. No package is imported."""
    return all(map(_is_installed, packages))


class _NotInstalled(click.ClickException):
    exit_code = WRONG_USE


def _is_installed(package: str) -> bool:
    try:
        return util.find_spec(package) is not None
    except ValueError:  # ``sys.modules`` has None for the package, which forbids its import
        return False


class Interrupted(click.ClickException):
    """The error of a command that a signal has ended. It is printed like other errors; click itself would print an empty line
    before it.
    """

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__("terminated" if number == signal.SIGTERM else "interrupted")
        self.exit_code = exit_code_of(number)  # type: ignore[misc]  # click reads it from the instance


def run(work: Coroutine[Any, Any, T], *, signalled: bool = False) -> T:
    """Run a coroutine with ``rmq_async.run`` and return its result or raise its error.

    The first SIGINT or SIGTERM cancels the coroutine. If the coroutine then ends, Interrupted is raised. A second signal ends
    the process at once, even while the loop is blocked by output that no one reads. Outside of the main thread, no signal is
    handled.

    Args:
        signalled: True if a first signal has already arrived, so that the next one counts as the second.
    """
    try:
        return rmq_async.run(_until_signal(work, signalled))
    except KeyboardInterrupt:  # before the signals are handled
        raise Interrupted from None


async def _until_signal(work: Coroutine[Any, Any, T], signalled: bool) -> T:
    loop, task, received = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
    assert task is not None

    def cancel(number: int) -> None:
        received.append(number)
        loop.call_soon_threadsafe(task.cancel)

    with signals_handled(end_at_once if signalled else cancel):
        try:
            return await work
        except asyncio.CancelledError:
            if received:
                raise Interrupted(received[0]) from None
            raise
