"""The ``rmq`` command. Its modules need the extra ``cli`` (click and rich); importing this package does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, NoReturn

__all__ = ["main", "missing_package"]

FAILED: Final = 1
INTERRUPTED: Final = 130
_NEEDED: Final = frozenset({"click", "rich"})


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and end the process with its exit code.

    The exit code is 0 for success, 1 for a failure, 2 for wrong usage, 130 after Ctrl-C, and 143 after SIGTERM. ``consume``,
    ``server``, and ``outbox relay`` without --drain run until a first signal, after which they end with 0.

    Args:
        arguments: Arguments after the program's name. The default is the arguments of the process.
    """
    _open_standard_files()
    try:
        from .app import run_command

        if find_spec("rich") is None:  # rich is imported late, by the code that prints tables
            raise ModuleNotFoundError(name="rich")
    except ModuleNotFoundError as error:
        missing = missing_package(error)
        if missing is None:
            raise
        sys.exit(_print_error(missing, 2))
    except KeyboardInterrupt:
        sys.exit(_print_error("interrupted", INTERRUPTED))
    sys.exit(_ended(run_command(arguments)))


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return the advice about a missing package of the extra ``cli``. Return None for other modules."""
    if error.name is None or error.name.partition(".")[0] not in _NEEDED:
        return None
    return f"{error.name} is not installed; pip install 'rmq-async[cli]' installs all packages that this command needs"


def _print_error(why: str, code: int) -> int:
    sys.stderr.write(f"rmq: {why}\n")
    return code


def _ended(code: int) -> int:
    """Write the rest of stdout and return the exit code. If writing failed, return 1 in place of 0.

    Output that cannot be written is dropped, because the interpreter would try again and end with code 120.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        code = code or FAILED
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _open_standard_files() -> None:
    """Open /dev/null for each closed standard file (``rmq ... >&-``).

    Otherwise, the next socket would get the number of the closed file, and the output would be written to the socket.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as the process
