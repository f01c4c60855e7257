"""Runs a test under virtual time: on the simulation's loop, with its clock and its network, in which embedded brokers and clients
meet on 127.0.0.1. Sleeps, time-outs and retries take no time; threads, sockets, subprocesses, TLS and signals are refused.
``time.sleep`` holds the loop: the time moves on, and timers run late.

A test is marked with ``@pytest.mark.virtual_time``, a file with ``pytestmark = pytest.mark.virtual_time``. Fixtures of an
asynchronous test that are coroutines run on its loop, too.
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import Awaitable, Iterator, Mapping
from random import Random
from types import ModuleType
from typing import Any, TypeVar

from rmq_async import machine as library
from rmq_async.testing.simulation import Scheduler, SimulatedLoop, standard_library
from rmq_async.testing.simulation.machines import EPOCH, LoopExecutor
from rmq_async.testing.simulation.network import SimulatedNetwork
from rmq_async.testing.simulation.running import drive
from rmq_async.testing.simulation.scheduler import MonotonicClock, nanoseconds
from rmq_async.testing.simulation.standard_library import StandardLibrary, bound_names, replaceable_modules

T = TypeVar("T")
BLACK_HOLE = "192.0.2.1:10911"
"""An address that neither accepts nor refuses: no machine of the simulated network has it, so packets to it are lost."""
open_loops: list[VirtualTimeLoop] = []
"""Loops that show their time to the library; none is left at the end of a test, else all later ones had its clock."""
KEPT = ("monotonic", "time", "random", "entropy", "process_id", "executor", "instance_name", "address")


REAL = [
    *[(library, name, getattr(library, name)) for name in KEPT if name != "instance_name"],
    *[(time, name, getattr(time, name)) for name in ("monotonic", "sleep", "time")],
]
"""What a process has outside of tests; its instance name it may draw at any time."""


def give_clocks_back() -> None:
    """Restores the clocks of the process: pytest's ``monkeypatch`` may be older than the loop of a test, and then undoes what a
    test has set when that loop has ended, so that all later tests would have its clock."""
    for owner, name, value in REAL:
        setattr(owner, name, value)


class KnownNames:
    """Looks through each module once in a process: 2,900 modules of the whole suite for each of 2,800 tests took a minute.

    Stands for ``all_bound_names``, for all simulations of the process.
    """

    def __init__(self) -> None:
        self._seen: dict[str, ModuleType] = {}
        self._found: list[tuple[ModuleType, str, Any]] = []

    def __call__(self, by_id: Mapping[int, Any]) -> Iterator[tuple[ModuleType, str, Any]]:
        new = {name: module for name, module in sys.modules.items() if self._seen.get(name) is not module}
        self._found += bound_names(replaceable_modules(new), by_id)
        self._seen.update(new)
        for module, name, _ in self._found:
            if (found := by_id.get(id(vars(module).get(name)))) is not None:  # a test may have put something else there
                yield module, name, found


standard_library.all_bound_names = KnownNames()  # type: ignore[assignment]


class Clocks:
    """The clocks and random sources of the one process of a test."""

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.clock = MonotonicClock(scheduler, booted=1000.0)
        self.monotonic = self.clock.time
        self.random, self.entropy = Random(seed), Random(seed + 1)
        self._scheduler = scheduler

    def time(self) -> float:
        return EPOCH + self._scheduler.now / 1e9


class VirtualTimeLoop(SimulatedLoop):
    """The loop of one test. From its making to ``close`` the library and the standard library show its time."""

    def __init__(self, seed: int) -> None:
        scheduler = Scheduler()
        network = SimulatedNetwork(scheduler, lambda name: Random(zlib.crc32(name.encode(), seed)))
        self._clocks = Clocks(scheduler, seed)
        self._scheduling = scheduler
        host = network.host("test")
        super().__init__(scheduler, "test", chance=Random(seed + 2), clock=self._clocks.clock, network=host)
        self._before = {name: getattr(library, name) for name in KEPT}
        self._library = StandardLibrary(self._clocks, lambda seconds: scheduler.block(nanoseconds(seconds)))
        self._library.__enter__()
        library.monotonic, library.time = self._clocks.monotonic, self._clocks.time
        library.random, library.entropy = self._clocks.random, self._clocks.entropy
        library.address = host.address
        library.executor = LoopExecutor(self)
        open_loops.append(self)

    def run_until_complete(self, future: Awaitable[T]) -> T:  # type: ignore[override]
        done = asyncio.ensure_future(future, loop=self)
        drive(self._scheduling, done.done, lambda: [self], "", limit=60.0)
        return done.result()

    def close(self) -> None:
        if self.dead:
            return
        super().close()
        try:
            self.bury()
        finally:
            self._library.__exit__(None, None, None)
            for name, value in self._before.items():
                setattr(library, name, value)
            open_loops.remove(self)
