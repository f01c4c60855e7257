"""The same question about many things, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

__all__ = ["for_each"]

K = TypeVar("K")
V = TypeVar("V")


async def for_each(items: Iterable[K], function: Callable[[K], Awaitable[V]], *, at_once: int = 16) -> dict[K, V]:
    """``function`` of every item, a few at a time; the first failure cancels the rest and is raised."""
    results: dict[K, V] = {}
    left = iter(list(items))

    async def work() -> None:
        for item in left:
            results[item] = await function(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return results
