"""Runs a task of a simulated process to its end, in this thread, and ends all processes."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from .errors import DeadEnd, Frozen, SimulationError
from .loop import SimulatedLoop
from .scheduler import Scheduler
from .waiting import waiting_tasks
from .watchdog import LIMIT, Watchdog

__all__ = ["run_task"]

T = TypeVar("T")
_REMEDY: Final = "make the code in this stack end, or await something that takes virtual time"


def run_task(
    scheduler: Scheduler,
    task: asyncio.Task[T],
    loops: Callable[[], Iterable[SimulatedLoop]],
    *,
    seed: int,
    limit: float = LIMIT,
    failed: Callable[[], bool] = lambda: False,
    afterwards: Callable[[], None] = lambda: None,
) -> T | None:
    """Runs the scheduler until ``task`` is done, then ends all processes; returns the task's result or raises its error.

    ``loops``: returns the loops of all processes; closed ones may be among them. ``limit``: real seconds of one callback.
    ``failed``: returns whether the run must end before the task is done; the result is None then. ``afterwards``: called after a
    task without an error, while the processes still have all they had; it may take long. Raises SimulationError with the seed
    when a callback does not end, time does not move, or nothing is left to run.
    """
    hooks, collecting = sys.get_asyncgen_hooks(), gc.isenabled()
    gc.collect()
    gc.disable()
    watchdog = Watchdog(limit)
    try:
        with watchdog:
            scheduler.run(lambda: task.done() or failed(), watchdog)
        if watchdog.stack:
            raise Frozen
        if not task.done():
            return None
        result = task.result()
        afterwards()
        return result
    except Frozen:
        raise SimulationError(f"seed {seed}: {watchdog.why}, at {_now(scheduler)}; {_REMEDY}:\n{watchdog.stack}") from None
    except DeadEnd as error:
        waiting = "\n".join(waiting_tasks(loop for loop in loops() if not loop.dead)) or "no task waits"
        raise SimulationError(
            f"seed {seed}: {error}, at {_now(scheduler)}; look at what its tasks wait for:\n{waiting}"
        ) from None
    finally:
        for loop in loops():
            loop.close()
        for loop in loops():
            loop.bury()
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*hooks)
        if collecting:
            gc.enable()


def _now(scheduler: Scheduler) -> str:
    return f"{scheduler.now / 1e9:.6f} s, iteration {scheduler.iterations:,}"
