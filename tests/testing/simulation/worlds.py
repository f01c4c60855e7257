"""Processes without a network, for tests of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from rmq_async.testing.simulation import Scheduler, SimulatedLoop, run_task
from rmq_async.testing.simulation.scheduler import MonotonicClock

T = TypeVar("T")


class Processes:
    """``loops``: by name. The first process starts at a monotonic time of 100 s."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        self.scheduler = Scheduler()
        self.loops: dict[str, SimulatedLoop] = {}

    def process(self, name: str, *, booted: float = 100.0) -> SimulatedLoop:
        chance = Random(f"{self.seed} {name}")
        clock = MonotonicClock(self.scheduler, booted=booted)
        loop = self.loops[name] = SimulatedLoop(self.scheduler, name, chance=chance, clock=clock)
        return loop

    def run(self, main: Callable[[], Awaitable[T]], *, limit: float = 5.0) -> T:
        async def first() -> T:
            return await main()

        task = (self.loops.get("main") or self.process("main")).create_task(first(), name="main")
        return run_task(self.scheduler, task, self.loops.values, seed=self.seed, limit=limit)
