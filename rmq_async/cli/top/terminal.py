"""Reads the keys of a terminal, one by one and without an echo, while the live view is shown."""

from __future__ import annotations

import asyncio
import codecs
import os
import select
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from .controls import keys_of

STDIN: Final = 0
STDOUT: Final = 1
LEAVE: Final = b"\x1b[?25h\x1b[?1049l"
"""The sequence that shows the cursor and restores the screen that was there before the view."""
Settings = list[Any]


@contextmanager
def pressed_keys(press: Callable[[str], None], gone: Callable[[], None]) -> Iterator[None]:
    """Call ``press`` for each key, and ``gone`` when the terminal has been closed. Restore the terminal's settings at the end.

    Do nothing if standard input is not a terminal.
    """
    if not os.isatty(STDIN):
        yield
        return
    loop, decode = asyncio.get_running_loop(), codecs.getincrementaldecoder("utf-8")("replace").decode

    def read() -> None:
        try:
            data = os.read(STDIN, 1024)
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(STDIN)
            gone()
        for key in keys_of(decode(data)):
            press(key)

    before, blocks = termios.tcgetattr(STDIN), os.get_blocking(STDIN)
    tty.setcbreak(STDIN)
    loop.add_reader(STDIN, read)
    os.set_blocking(STDIN, blocks)  # uvloop makes the terminal non-blocking, which would cut off the output of other programs
    try:
        yield
    finally:
        loop.remove_reader(STDIN)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


def settings_now() -> Settings | None:
    """Return the settings of the terminal on standard input. Return None if standard input is not a terminal."""
    return termios.tcgetattr(STDIN) if os.isatty(STDIN) else None


def leave_at_once(settings: Settings | None) -> None:
    """Restore the terminal without waiting for its output. This is for a process that is about to end."""
    with suppress(OSError, termios.error):
        if settings is not None:
            termios.tcsetattr(STDIN, termios.TCSANOW, settings)
        if select.select([], [STDOUT], [], 0)[1]:
            os.write(STDOUT, LEAVE)
