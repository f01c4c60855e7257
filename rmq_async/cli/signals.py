"""Handles SIGINT and SIGTERM. The first signal lets a command end in order, and a second signal ends it at once.

The handlers are set with ``signal.signal`` and not on a loop. A loop that is blocked, by output that no one reads or by a call
that does not return, would never call its handlers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def exit_code_of(number: int) -> int:
    """Return the exit code of a command that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
    return 128 + number


def end_at_once(number: int) -> None:
    """End the process at once, without its remaining work."""
    os._exit(exit_code_of(number))


@contextmanager
def signals_handled(first: Callable[[int], object], again: Callable[[int], object] = end_at_once) -> Iterator[None]:
    """Call ``first`` with the number of the first signal and ``again`` with the number of each later signal, while the body
    runs.

    Like all handlers of ``signal.signal``, both run in the main thread, between any two of its instructions, so they must pass
    work for a loop to ``call_soon_threadsafe``. Outside of the main thread, no signal is handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = False

    def handle(number: int, _: object) -> None:
        nonlocal received
        call = again if received else first
        received = True
        call(number)

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_by_signal() -> Iterator[asyncio.Event]:
    """Provide an event of the running loop that the first signal sets. A second signal ends the process at once."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    with signals_handled(lambda _: loop.call_soon_threadsafe(ended.set)):
        yield ended


async def unless(ended: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``work``. If ``ended`` is set first, cancel ``work`` and return None."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        waiting.cancel()
        await asyncio.wait((working, waiting))
    return None if working.cancelled() else working.result()
