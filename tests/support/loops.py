"""Which event loops the asynchronous tests run on.

Tests of the transport, where the loops differ, run on asyncio's and on uvloop. A test of a room above it runs on one of the two,
chosen by its name, so that both carry half of each room at half the time; RMQ_LOOPS=both runs everything on both. A test marked
``virtual_time`` runs on the simulation's, where waiting takes no time.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from zlib import crc32

import pytest
import uvloop

from .virtual_time import VirtualTimeLoop

__all__ = ["BOTH", "pytest_asyncio_loop_factories", "unblocked"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]

BOTH: Mapping[str, LoopFactory] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, LoopFactory]:
    """The hook of pytest-asyncio, for a room's conftest to import."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": partial(VirtualTimeLoop, crc32(item.nodeid.encode()))}
    marker = item.get_closest_marker("asyncio")
    if os.environ.get("RMQ_LOOPS") == "both" or (marker is not None and marker.kwargs.get("loop_factories")):
        return BOTH  # a test that names its loop runs on that
    name = sorted(BOTH)[crc32(item.nodeid.encode()) % 2]
    return {name: BOTH[name]}


@contextmanager
def unblocked(seconds: float = 3.0) -> Iterator[None]:
    """Fails a block in which the running loop stands still for ``seconds`` of the processor; a signal breaks into what holds it.

    Not of the clock: of a busy machine the process may get none for seconds.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def turn() -> None:
        nonlocal timer
        signal.setitimer(signal.ITIMER_PROF, seconds)
        timer = loop.call_later(seconds / 8, turn)

    def stands_still(*_: object) -> None:
        raise AssertionError(f"the event loop has not turned for {seconds:g} s")

    former = signal.signal(signal.SIGPROF, stands_still)
    turn()
    try:
        yield
    finally:
        timer.cancel()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, former)
