"""Writes to standard output without blocking the loop.

A reader (``| less``) may stop reading for any time. A daemon thread writes to the descriptor itself, so that a write that does not
end blocks neither the loop with its heartbeats nor the end of the interpreter.
"""

from __future__ import annotations

import asyncio
import io
import os
import queue
import select
import sys
from contextlib import suppress

import click

from .._threads import NoThreadError, start_thread

__all__ = ["Printer"]


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

        Where no thread can be started, the loop itself writes.

        Raises:
            OSError: As writing does.
            BrokenPipeError: If the reader has closed the pipe.
        """
        if not self._has_thread:
            _write(data)
            return
        written: asyncio.Future[None] = self._loop.create_future()
        self._waiting.put((data, written))
        await written

    def close(self) -> None:
        """End the thread after the writes that wait; return at once."""
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
    except (AttributeError, io.UnsupportedOperation):  # a test has put another object there
        click.echo(data, nl=False)
        return
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # another process has made the pipe non-blocking
            select.select([], [descriptor], [])
