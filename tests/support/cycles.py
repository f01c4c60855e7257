"""What failed calls leave to the garbage collector: nothing of theirs."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType

import pytest

import rmq_async
from rmq_async import RocketMQError

__all__ = ["frozen", "no_cycle"]

PACKAGE = str(Path(rmq_async.__file__).parent)
OF_CALLS = ("rmq_async.producer", "rmq_async.consumer", "rmq_async.reading", "rmq_async.admin")


def is_of_a_call(thing: object) -> bool:
    if isinstance(thing, FrameType):
        return thing.f_code.co_filename.startswith(PACKAGE)
    return isinstance(thing, RocketMQError) or type(thing).__module__.startswith(OF_CALLS)


def name_of(thing: object) -> str:
    return thing.f_code.co_qualname if isinstance(thing, FrameType) else type(thing).__name__


@pytest.fixture
def frozen() -> None:
    """What is there before is left out, so that a collection takes a millisecond. It is left out from then on, as ``conftest``
    leaves out the collected tests."""
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def no_cycle(what: str) -> AsyncIterator[None]:
    """Fails a block that leaves something of a call to the collector, which does not run meanwhile."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(name_of(thing) for thing in gc.garbage if is_of_a_call(thing))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not left, f"{what} leave {left}"
