"""Describes the waits of tasks, for the error of a simulation that cannot continue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from os.path import basename
from typing import Any


def place_of(task: asyncio.Task[Any]) -> str:
    """Return file, line and function of the innermost frame of an unfinished task.

    Before its first step, return the beginning of its function. For an async generator only the line that uses it is known.
    """
    inner: Any = task.get_coro()
    place = "a place without a Python frame"
    while inner is not None:
        frame = _first(inner, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            place = f"{basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        inner = _first(inner, "cr_await", "gi_yieldfrom", "ag_await")
    return place


def waiting_tasks(loops: Iterable[asyncio.AbstractEventLoop]) -> list[str]:
    """Return a line for each unfinished task of the loops: its name, and the place at which it waits."""
    return [
        f"{task.get_name()} waits at {place_of(task)}"
        for loop in loops
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    ]


def _first(owner: object, *names: str) -> Any:
    """Return the first of the attributes that exists and is not None."""
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)
