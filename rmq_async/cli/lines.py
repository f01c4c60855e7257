"""Reads the lines of standard input without blocking the loop.

A thread reads, because an event loop cannot wait for every kind of file (regular files, /dev/null). It is a daemon and reads the
descriptor itself, so a read that never ends keeps neither the loop nor the interpreter from ending.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from .._threads import start_thread

CHUNK: Final = 64 * 1024
AHEAD: Final = 4
"""Maximum number of chunks that are read before they are used."""


async def lines_of(descriptor: int, limit: int) -> AsyncGenerator[bytes, None]:
    """Yield each line without its end.

    Raises:
        OSError: As reading does.
        ValueError: For a line of more than ``limit`` bytes; one that ends in the chunk in which it exceeds the limit passes.
        NoThreadError: Where no thread can be started.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)

    def read() -> None:
        while True:
            room.acquire()
            chunk: bytes | OSError
            try:
                chunk = os.read(descriptor, CHUNK)
            except OSError as error:
                chunk = error
            with suppress(RuntimeError):  # the loop is closed, so the chunk has no reader
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
            if not chunk or isinstance(chunk, OSError):
                return

    start_thread(read, "rmq standard input")
    rest = bytearray()
    number = 1
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            if rest:
                yield bytes(rest)
            return
        rest += chunk
        if b"\n" in chunk:
            *whole, last = rest.split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield bytes(line.removesuffix(b"\r"))
            number += len(whole)
        if len(rest) > limit:
            raise ValueError(f"line {number} of standard input is longer than {limit} bytes; shorten it")
