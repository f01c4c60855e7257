"""Runs that cannot go on end with an error that says where."""

from __future__ import annotations

import asyncio
import threading
from time import process_time
from typing import NoReturn

import pytest

from rmq_async.testing.simulation import SimulationError, run_task

from .worlds import Processes

pytestmark = pytest.mark.interpreters


async def waits_for_ever(event: asyncio.Event) -> None:
    await event.wait()


def test_a_dead_end_names_each_task_and_where_it_waits() -> None:
    processes = Processes(seed=4711)

    async def main() -> None:
        waiting = asyncio.create_task(waits_for_ever(asyncio.Event()), name="the reader")
        await waiting

    with pytest.raises(SimulationError) as raised:
        processes.run(main)
    text = str(raised.value)
    assert "seed 4711" in text
    assert "no call is ready and no timer is set" in text
    assert "the reader waits at locks.py" in text
    assert "main waits at test_freezes.py" in text


def test_a_turn_that_lets_no_time_pass_ends_the_run() -> None:
    async def main() -> NoReturn:
        while True:
            await asyncio.sleep(0)

    with pytest.raises(SimulationError, match="100,000 iterations") as raised:
        Processes(seed=5).run(main)
    assert "main waits at" in str(raised.value)


def test_a_callback_that_does_not_end_is_stopped_with_its_stack() -> None:
    async def main() -> None:
        turns = 0
        while True:
            try:
                while True:
                    turns += 1
            except ValueError:
                turns = 0

    threads = threading.active_count()
    with pytest.raises(SimulationError, match=r"more than 0\.2 real seconds") as raised:
        Processes(seed=6).run(main, limit=0.2)
    assert "seed 6" in str(raised.value)
    assert "turns += 1" in str(raised.value) or "while True" in str(raised.value)
    assert threading.active_count() == threads


def test_many_short_callbacks_are_no_freeze() -> None:
    async def main() -> int:
        turns = 0
        while turns < 20_000:
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert Processes().run(main, limit=0.2) == 20_000


def test_checks_after_a_run_may_take_longer_than_a_callback() -> None:
    processes, ended = Processes(), []

    async def main() -> int:
        return 17

    def check() -> None:
        began = process_time()
        while process_time() - began < 0.3:
            pass
        ended.append(processes.scheduler.now)

    task = processes.process("main").create_task(main(), name="main")
    result = run_task(processes.scheduler, task, processes.loops.values, seed=1, limit=0.05, afterwards=check)
    assert result == 17
    assert ended == [0]
