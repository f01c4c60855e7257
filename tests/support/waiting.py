"""Waiting in tests: for a condition, or for some turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

__all__ = ["spin", "until"]


async def until(condition: Callable[[], Any], timeout: float = 5.0) -> None:
    """Waits until the condition holds; fails when it does not come to hold."""
    deadline = monotonic() + timeout
    while not condition():
        assert monotonic() < deadline, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


async def spin(steps: int = 1) -> None:
    """Lets the loop run that many iterations."""
    for _ in range(steps):
        await asyncio.sleep(0)
