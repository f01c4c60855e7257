"""Prints the output of commands: tables and lines of text, or one JSON object per line. On a terminal, it also shows progress
bars.
"""

from __future__ import annotations

import asyncio
import io
import os
import queue
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click
import msgspec

from .._threads import NoThreadError, start_thread

if TYPE_CHECKING:  # importing rich takes a fifth of the start of a command, and most commands print no table
    from rich.progress import Progress
    from rich.table import Table

_WIDEST: Final = 100_000
"""Width, in characters, of a table that is printed to a pipe or a file."""


def plain_table(*texts: str, **numbers: bool) -> Table:
    """Return a table without lines. Columns in ``numbers`` whose value is True are aligned to the right. All other columns are
    aligned to the left.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in texts:
        table.add_column(heading, overflow="fold")
    for heading, to_the_right in numbers.items():
        table.add_column(heading, justify="right" if to_the_right else "left", no_wrap=True)
    return table


class Output:
    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def record(self, fields: dict[str, object]) -> None:
        """Print a JSON object. Print nothing in text mode."""
        if self.as_json:
            click.echo(msgspec.json.encode(fields))
            sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """Print a line. Print nothing in JSON mode."""
        if not self.as_json:
            click.echo(text)
            sys.stdout.flush()

    def body(self, body: bytes) -> None:
        """Print a message's body and a line end. Print nothing in JSON mode."""
        if not self.as_json:
            click.echo(body)

    def table(self, table: Table) -> None:
        """Print a table. Print nothing in JSON mode. Rows are folded only on a terminal; in a pipe, each row is one line."""
        if not self.as_json:
            from rich.console import Console

            width = None if sys.stdout.isatty() else _WIDEST
            Console(markup=False, highlight=False, width=width).print(table)

    def trouble(self, text: str) -> None:
        """Print one line on stderr, in both text and JSON mode."""
        click.echo(f"rmq: {' '.join(text.split())}", err=True)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Provide progress bars on stderr. They print nothing in JSON mode or if stderr is not a terminal."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description:<10}"), BarColumn(bar_width=36), MofNCompleteColumn(), TimeElapsedColumn())
        silent = self.as_json or not sys.stderr.isatty()
        # quiet, because rich 13 prints a line end even for a disabled bar
        console = Console(stderr=True, highlight=False, quiet=silent)
        with Progress(*columns, console=console, disable=silent) as progress:
            yield progress


# Writes to standard output without blocking the loop.
#
# A reader (``| less``) may stop reading for any length of time. Therefore, a daemon thread writes to the descriptor directly. A
# write that does not end then blocks neither the loop, which sends heartbeats, nor the end of the interpreter.


class Printer:
    """Writes bytes to standard output, in the order of the calls. ``close`` ends its thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_thread = True
        self._waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()
        sys.stdout.flush()
        try:
            start_thread(self._write_all, "rmq standard output")
        except NoThreadError:
            self._has_thread = False

    async def write(self, data: bytes) -> None:
        """Write ``data`` and return when that is done.

        If no thread can be started, the loop itself writes.

        Raises:
            OSError: If the write fails.
            BrokenPipeError: If the reader has closed the pipe.
        """
        if not self._has_thread:
            _write(data)
            return
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((data, written))
        await written

    def close(self) -> None:
        """Let the thread end after the waiting writes. Return at once."""
        self._waiting.put(None)

    def _write_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            data, written = item
            error: OSError | None = None
            try:
                _write(data)
            except OSError as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, written, error)


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


def _write(data: bytes) -> None:
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, io.UnsupportedOperation):  # a test has replaced the object
        click.echo(data, nl=False)
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the pipe non-blocking
            select.select([], [descriptor], [])
