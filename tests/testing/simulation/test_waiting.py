"""The lines that the error of a simulation without progress has for each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rmq_async.testing.simulation.running import place_of


async def inner(event: asyncio.Event) -> None:
    await event.wait()


async def outer(event: asyncio.Event) -> None:
    await inner(event)


async def generated(event: asyncio.Event) -> AsyncIterator[None]:
    await event.wait()
    yield


async def user(event: asyncio.Event) -> None:
    async for _ in generated(event):
        pass


async def test_place_of_a_task_is_its_innermost_frame() -> None:
    event = asyncio.Event()
    tasks = [asyncio.create_task(function(event)) for function in (outer, user)]
    first = outer.__code__.co_firstlineno
    assert place_of(tasks[0]) == f"test_waiting.py:{first} in outer"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    place, line = place_of(tasks[0]), user.__code__.co_firstlineno + 1
    assert (place.startswith("locks.py:"), place.endswith(" in Event.wait")) == (True, True)
    assert place_of(tasks[1]) == f"test_waiting.py:{line} in user"
    event.set()
    await asyncio.gather(*tasks)
    assert place_of(tasks[0]) == "a place without a Python frame"
