"""What the client costs, the same on every machine: Python functions of this library called by a piece of work, counted.

Servers belong into another thread, which the counting does not see.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import rmq_async
from rmq_protocol import command

__all__ = ["Calls", "counted"]

ROOMS = (str(Path(rmq_async.__file__).parent), str(Path(command.__file__).parent))


class Calls:
    count = 0


@contextmanager
def counted() -> Iterator[Calls]:
    """Counts the calls (each step of a coroutine is one) of functions of this library in this thread."""
    calls = Calls()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(ROOMS):
            calls.count += 1

    gc.disable()  # finalizers are calls too
    sys.setprofile(profile)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        gc.enable()
