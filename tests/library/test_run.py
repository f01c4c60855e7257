"""``rmq_async.run`` where a loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import rmq_async

pytestmark = pytest.mark.interpreters


async def test_run_beside_a_running_loop_says_what_to_write() -> None:
    async def steps() -> None:
        raise AssertionError("it does not run")

    with pytest.raises(RuntimeError, match=r"an event loop already runs in this thread.*write `await steps\(\)`"):
        rmq_async.run(steps())
    gc.collect()  # a coroutine that was never awaited would warn, which is an error here


async def test_run_beside_a_running_loop_with_another_object() -> None:
    task = asyncio.ensure_future(asyncio.sleep(0))
    other: Any = task
    with pytest.raises(RuntimeError, match=r"write `await main\(\)`"):
        rmq_async.run(other)
    await task


def test_run_with_a_coroutine_function_says_what_to_write() -> None:
    async def steps() -> None:
        raise AssertionError("it does not run")

    function: Any = steps
    with pytest.raises(
        ValueError, match=r"run\(\) takes a coroutine, not the function steps; call the function: run\(steps\(\)\)"
    ):
        rmq_async.run(function)


def test_run_returns_what_the_coroutine_returns() -> None:
    async def main() -> int:
        return 7

    assert rmq_async.run(main()) == 7
