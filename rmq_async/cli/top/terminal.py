"""Keys of a terminal, one by one and without an echo, for as long as the live view is shown."""

from __future__ import annotations

import asyncio
import codecs
import os
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from .controls import keys_of

__all__ = ["pressed_keys"]

STDIN: Final = 0


@contextmanager
def pressed_keys(press: Callable[[str], None]) -> Iterator[None]:
    """Calls ``press`` for each key; does nothing where standard input is no terminal. Restores the terminal's settings."""
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
        for key in keys_of(decode(data)):
            press(key)

    before = termios.tcgetattr(STDIN)
    tty.setcbreak(STDIN)
    loop.add_reader(STDIN, read)
    try:
        yield
    finally:
        loop.remove_reader(STDIN)
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)
