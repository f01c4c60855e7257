"""The time that a busy machine takes from a call, as tests/support/lateness.py counts it."""

from __future__ import annotations

import asyncio
import time
from time import monotonic

from ..support.lateness import Lateness

BLOCK = 0.05


async def test_lateness_of_a_block_counts_for_the_call_that_meets_it() -> None:
    async with Lateness() as late:
        await asyncio.sleep(0.01)
        began = monotonic()
        asyncio.get_running_loop().call_soon(time.sleep, BLOCK)
        await asyncio.sleep(0.01)
        ended = monotonic()
        time.sleep(BLOCK)
        await asyncio.sleep(0.01)
    assert BLOCK - 0.01 <= late.between(began, ended) <= ended - began
    assert late.own(began, ended) == ended - began - late.between(began, ended)
    assert late.between(began - 1.0, monotonic()) >= 2 * BLOCK - 0.01


async def test_lateness_beside_its_looks_is_none() -> None:
    async with Lateness() as late:
        await asyncio.sleep(0.01)
    assert late.between(1.0, 2.0) == 0.0
    assert late.between(monotonic(), monotonic() + 1.0) <= late.between(0.0, monotonic())
