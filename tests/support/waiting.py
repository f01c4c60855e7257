"""Waiting in tests: for a condition, or for some turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

from rmq_async.testing.simulation import SimulatedLoop

__all__ = ["LEAST", "limit", "spin", "until"]

LEAST: Final = 60.0
"""Real seconds after which a test gives up at the earliest: of a busy machine a test may get little."""


def limit(seconds: float) -> float:
    """Returns the seconds that what is waited for may take: as many in virtual time, where they are exact, ``LEAST`` in real."""
    return seconds if isinstance(asyncio.get_running_loop(), SimulatedLoop) else max(seconds, LEAST)


async def until(condition: Callable[[], Any], timeout: float = 5.0) -> None:
    """Waits until the condition holds; fails when it does not come to hold within the ``limit``."""
    deadline = monotonic() + limit(timeout)
    while not condition():
        assert monotonic() < deadline, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


async def spin(steps: int = 1) -> None:
    """Lets the loop run that many iterations."""
    for _ in range(steps):
        await asyncio.sleep(0)
