"""What the client costs, the same on every machine: Python functions called by a piece of work, counted.

All count, those of the standard library and of generated code too, except the test's own and the event loop's. Servers belong into
another thread, which the counting does not see.
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

__all__ = ["Calls", "counted"]

NOT_COUNTED = (
    str(Path(__file__).parents[1]),
    str(Path(asyncio.__file__).parent),
    selectors.__file__,
    weakref.WeakSet.__init__.__code__.co_filename,
)


class Calls:
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
