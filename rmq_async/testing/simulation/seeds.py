"""Runs one seed of a simulation. For a seed that fails, the module finds a minimal set of kinds of faults with which it still
fails.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from .errors import SimulationError
from .faults import Faults
from .simulation import Simulation, drawn_faults

LIBRARY: Final = str(Path(__file__).parents[2]) + os.sep
MOST_FRAMES: Final = 8
"""Maximum number of frames of a traceback that a violation shows."""
S = TypeVar("S", bound=Simulation)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed.

    Attributes:
        operations: Number of calls of producers.
        seconds: Virtual seconds that the run took.
        cpu: CPU seconds that the run took.
        kinds: Kinds of faults that were drawn.
        met: Numbers of faults that had an effect, by kind.
        unmet: Drawn kinds that had no effect.
        trace_hash: Digest of all delivered frames.
        violation: The error of the run or of its checks. Empty if there is no error.
    """

    seed: int
    operations: int
    seconds: float
    cpu: float
    kinds: tuple[str, ...]
    met: dict[str, int]
    unmet: tuple[str, ...]
    trace_hash: str
    violation: str = ""


class SeedRun(Protocol):
    """A function that runs one seed without some of the kinds of faults that the seed draws."""

    def __call__(self, seed: int, *, without: Iterable[str] = (), trace: bool = False) -> Outcome: ...


def run_seed(
    main: Callable[[Simulation], Awaitable[object]], seed: int, *, without: Iterable[str] = (), trace: bool = False
) -> Outcome:
    """Run a coroutine function on a simulated cluster with ``Faults.swarm()`` and check the run.

    Args:
        main: The coroutine function. Its argument is the simulation.
        seed: The seed, which determines everything that is drawn.
        without: Kinds of faults to leave out of the seed's kinds.
        trace: Whether to print a line for each frame.
    """
    return outcome_of(Simulation(seed, faults=seed_faults(seed, Faults.swarm(), without), trace=trace), main)


def seed_faults(seed: int, faults: Faults, without: Iterable[str]) -> Faults:
    """Return the faults that a seed draws, except some kinds."""
    drawn = drawn_faults(seed, faults)
    for kind in without:
        drawn = drawn.without(kind)
    return drawn


def outcome_of(simulation: S, main: Callable[[S], Awaitable[object]]) -> Outcome:
    """Run and check a new simulation. An error becomes the ``violation`` of the outcome."""
    began, violation, level = time.process_time(), "", logging.root.manager.disable
    logging.disable()  # thousands of warnings about intended faults
    try:
        simulation.run(main)  # type: ignore[arg-type]  # the simulation is passed itself
        simulation.check()
    except Exception as error:  # noqa: BLE001 - any error is a violation of this seed
        violation = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), *_frames(error)])
    finally:
        logging.disable(level)
    return Outcome(
        simulation.seed,
        simulation.operations,
        simulation.now,
        time.process_time() - began,
        tuple(sorted(simulation.faults.kinds)),
        dict(sorted((kind, number) for kind, number in simulation.faults_met.items() if number)),
        tuple(simulation.faults_unmet),
        simulation.trace_hash,
        violation,
    )


def minimised(run: SeedRun, failed: Outcome, *, without: Iterable[str] = ()) -> tuple[Outcome, tuple[str, ...]]:
    """Leave out, one after the other, the kinds of faults without which a seed still fails.

    Args:
        run: The function that has returned ``failed``.
        failed: An outcome with a violation.
        without: The kinds that were left out of the run of ``failed``. The result includes them.

    Returns:
        The last outcome that failed, and the kinds that were left out.
    """
    left_out = tuple(without)
    for kind in failed.kinds:
        outcome = run(failed.seed, without=(*left_out, kind))
        if outcome.violation:
            failed, left_out = outcome, (*left_out, kind)
    return failed, left_out


def _frames(error: BaseException) -> list[str]:
    """Return the lines of a traceback from the first frame outside the library on. Return no lines if all frames belong to the
    library.
    """
    raised = (isinstance(error, SimulationError) and error.__cause__) or error
    frames = [*traceback.extract_tb(raised.__traceback__)]
    while frames and frames[0].filename.startswith(LIBRARY):
        del frames[0]
    return [line for each in traceback.format_list(frames[-MOST_FRAMES:]) for line in each.rstrip().splitlines()]
