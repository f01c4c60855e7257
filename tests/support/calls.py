"""What the client costs, the same on every machine: Python functions called by a piece of work, or lines that it runs, counted.

All calls count, those of the standard library and of generated code too, except the test's own and the event loop's. Servers belong
into another thread, which the counting does not see.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import rmq_async

__all__ = ["Calls", "Lines", "counted", "lines_counted"]

NOT_COUNTED = (
    str(Path(__file__).parents[1]),
    str(Path(asyncio.__file__).parent),
    selectors.__file__,
    weakref.WeakSet.__init__.__code__.co_filename,
)


LIBRARY = str(Path(rmq_async.__file__).parent)


class Calls:
    count = 0


class Lines:
    count = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """Counts the calls (each step of a coroutine is one) of functions in this thread."""
    calls = Calls()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and not frame.f_code.co_filename.startswith(NOT_COUNTED):
            calls.count += 1

    gc.disable()  # finalizers are calls too
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()


@contextmanager
def lines_counted(folder: str = LIBRARY) -> Iterator[Lines]:
    """Counts the lines of the folder's modules that run meanwhile; each round of a loop runs its lines anew."""
    lines = Lines()

    def line(frame: FrameType, event: str, argument: object) -> Any:
        lines.count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if frame.f_code.co_filename.startswith(folder) else None)
    try:
        yield lines
    finally:
        sys.settrace(before)
