"""Lists the commands, and turns an error into one line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final

import click

import rmq_async
from rmq_async import ConfigError, InvalidMessageError, RocketMQError

from . import INTERRUPTED, missing_package
from .running import FAILED, WRONG_USE, needs_command

TRACEBACK_VARIABLE: Final = "RMQ_TRACEBACK"
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
COMMANDS: Final = (
    "bench", "consume", "demo", "group", "message", "outbox", "pull", "send", "server", "simulate", "spark", "top", "topic",
)  # fmt: skip
"""The commands. Each one is a module that has a function with the command's name."""


class Commands(click.Group):
    """A group that imports the module of a command only when the command is called, to save the time for importing the other
    modules.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f".{cmd_name}", __package__), cmd_name)
        assert isinstance(command, click.Command)
        return command


def run_command(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Print an error as one line on stderr. If the environment variable RMQ_TRACEBACK is set, raise unexpected errors, which are
    bugs, instead of printing them.
    """
    with _logging_to_stderr():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = rmq.main(None if arguments is None else list(arguments), prog_name="rmq", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "rmq"
        return _print_error(f"{error.format_message()} (see {path} --help)", WRONG_USE, path)
    except click.ClickException as error:
        return _print_error(error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return _print_error("interrupted", INTERRUPTED)
    except (ConfigError, InvalidMessageError) as error:
        return _print_error(str(error) + _about_locale(arguments, error), WRONG_USE)
    except (RocketMQError, OSError) as error:
        return _print_error((str(error) or type(error).__name__) + _about_locale(arguments, error), FAILED)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (missing := missing_package(error)):
            return _print_error(missing, WRONG_USE)
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        return _print_error(f"{type(error).__name__}: {error} (a bug; {TRACEBACK_VARIABLE}=1 shows where)", FAILED)
    return code if isinstance(code, int) else 0


def _about_locale(arguments: Sequence[str] | None, error: Exception) -> str:
    """Return the reason for an error about text without a UTF-8 form, if the text came from the command line. Python cannot
    decode characters of the command line that the locale does not have.
    """
    given = [each for each in (sys.argv[1:] if arguments is None else arguments) if _SURROGATE.search(each)]
    if not given or "surrogate" not in str(error):
        return ""
    encoding = sys.getfilesystemencoding()
    return f"; the locale's encoding, {encoding}, cannot read the argument {given[0]!r}: set LC_ALL=C.UTF-8 or PYTHONUTF8=1"


def _print_error(message: str, code: int, path: str = "rmq") -> int:
    click.echo(f"{path}: {' '.join(message.split())}", err=True)
    return code


@contextlib.contextmanager
def _logging_to_stderr() -> Iterator[None]:
    """Print the client's warnings on stderr while a command runs. Restore the logging of the calling program afterwards."""
    logger = logging.getLogger("rmq_async")
    before = logger.handlers, logger.level, logger.propagate
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("rmq: %(message)s"))
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: logger.warning("%s", message)
            yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or context.resilient_parsing:
        return
    from importlib import metadata  # imported here, because it takes a tenth of the start of a command

    try:
        loop = f"uvloop {metadata.version('uvloop')}"
    except metadata.PackageNotFoundError:
        loop = "without uvloop"
    click.echo(f"rmq-async {rmq_async.__version__} (Python {platform.python_version()}, {loop})")
    context.exit()


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0, 1 for failure, 2 for wrong use, 130 after Ctrl-C, 143 after SIGTERM.",
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def rmq(context: click.Context) -> int:
    """Apache RocketMQ from the command line."""
    return needs_command(context)
