"""Runs a task of a simulated process to its end in this thread, and then ends all processes."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterable
from os.path import basename
from typing import Any, Final, TypeVar

from .errors import DeadEnd, Frozen, SimulationError
from .loop import SimulatedLoop
from .scheduler import Scheduler
from .watchdog import LIMIT, Watchdog


def place_of(task: asyncio.Task[Any]) -> str:
    """Return the file, the line and the function of the innermost frame of an unfinished task.

    If the task has not run yet, return the beginning of its function. For an async generator, only the line that uses it is
    known.
    """
    inner: Any = task.get_coro()
    place = "a place without a Python frame"
    while inner is not None:
        frame = _first(inner, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None:
            place = f"{basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        inner = _first(inner, "cr_await", "gi_yieldfrom", "ag_await")
    return place


def waiting_tasks(loops: Iterable[asyncio.AbstractEventLoop]) -> list[str]:
    """Return a line for each unfinished task of the loops. A line has the name of the task and the place at which it waits."""
    return [
        f"{task.get_name()} waits at {place_of(task)}"
        for loop in loops
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    ]


def _first(owner: object, *names: str) -> Any:
    """Return the value of the first attribute that exists and is not None."""
    return next((found for name in names if (found := getattr(owner, name, None)) is not None), None)


T = TypeVar("T")
_REMEDY: Final = "make the code in this stack end, or await something that takes virtual time"


def drive(
    scheduler: Scheduler,
    over: Callable[[], bool],
    loops: Callable[[], Iterable[SimulatedLoop]],
    where: str,
    limit: float = LIMIT,
) -> None:
    """Run the scheduler in this thread until ``over()`` is true.

    Args:
        loops: A function that returns the loops of all processes, possibly including closed loops.
        where: The beginning of error messages.
        limit: Maximum number of real seconds of one callback.

    Raises:
        SimulationError: If a callback does not end, virtual time does not advance, or nothing is left to run.
    """
    hooks = sys.get_asyncgen_hooks()
    watchdog = Watchdog(limit)
    try:
        with watchdog:
            scheduler.run(over, watchdog)
        if watchdog.stack:
            raise Frozen
    except Frozen:
        raise SimulationError(f"{where}{watchdog.why}, at {_now(scheduler)}; {_REMEDY}:\n{watchdog.stack}") from None
    except DeadEnd as error:
        waiting = "\n".join(waiting_tasks(loop for loop in loops() if not loop.dead)) or "no task waits"
        raise SimulationError(f"{where}{error}, at {_now(scheduler)}; look at what its tasks wait for:\n{waiting}") from None
    finally:
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*hooks)


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
    """Run the scheduler until ``task`` is done, and then end all processes. Return the task's result or raise its error.

    Args:
        loops: A function that returns the loops of all processes, possibly including closed loops.
        limit: Maximum number of real seconds of one callback.
        failed: A function that returns whether the run must end before the task is done. The result is then None.
        afterwards: A function that is called if the task ended without an error, while the processes still have their
            resources. It may take long.

    Raises:
        SimulationError: If a callback does not end, virtual time does not advance, or nothing is left to run. The message names
            the seed.
    """
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        drive(scheduler, lambda: task.done() or failed(), loops, f"seed {seed}: ", limit)
        if not task.done():
            return None
        result = task.result()
        afterwards()
        return result
    finally:
        for loop in loops():
            loop.close()
        for loop in loops():
            loop.bury()
        if collecting:
            gc.enable()


def _now(scheduler: Scheduler) -> str:
    return f"{scheduler.now / 1e9:.6f} s, iteration {scheduler.iterations:,}"
