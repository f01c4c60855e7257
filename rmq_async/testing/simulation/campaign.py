"""Runs a scenario with one seed; for a seed that fails, leaves out one kind of fault after another as long as it still fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from .errors import SimulationError
from .faults import Faults
from .scenarios import SCENARIOS
from .simulation import Simulation, drawn_faults

__all__ = ["Outcome", "minimised", "run_seed"]

RATE: Final = 8.0
"""Faults per virtual minute, on average over the seeds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one seed. ``operations``: number of calls of producers. ``seconds``: virtual seconds. ``cpu``: CPU seconds.
    ``kinds``: kinds of faults that were drawn. ``met``: numbers of faults that had an effect, by kind. ``unmet``: drawn kinds that
    had no effect. ``trace_hash``: digest of all delivered frames. ``violation``: the error of the run or of its checks; empty if
    there is none."""

    scenario: str
    seed: int
    operations: int
    seconds: float
    cpu: float
    kinds: tuple[str, ...]
    met: dict[str, int]
    unmet: tuple[str, ...]
    trace_hash: str
    violation: str = ""


def run_seed(scenario: str, seed: int, *, without: Iterable[str] = (), trace: bool = False) -> Outcome:
    """Runs one seed of a scenario; an error of the run is the outcome's ``violation``. ``without``: kinds of faults to leave out of
    those that the seed draws. ``trace``: prints a line for each frame.

    Raises SimulationError for an unknown scenario, and for a seed that is no int.
    """
    played = SCENARIOS.get(scenario)
    if played is None:
        raise SimulationError(f"there is no scenario {scenario!r}; there are {', '.join(SCENARIOS)}")
    began = time.process_time()
    faults = drawn_faults(seed, Faults(played.kinds, rate=RATE, drawn=True))
    for kind in without:
        faults = faults.without(kind)
    simulation = Simulation(seed, brokers=played.brokers, name_servers=played.name_servers, faults=faults, trace=trace)
    violation, level = "", logging.root.manager.disable
    logging.disable()  # thousands of warnings about faults that are meant
    try:
        simulation.run(played.play)
        simulation.check()
    except Exception as error:  # noqa: BLE001 - any error is a violation of this seed
        violation = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())])
    finally:
        logging.disable(level)
    return Outcome(
        scenario,
        seed,
        simulation.operations,
        simulation.now,
        time.process_time() - began,
        tuple(sorted(faults.kinds)),
        dict(sorted((kind, number) for kind, number in simulation.faults_met.items() if number)),
        tuple(simulation.faults_unmet),
        simulation.trace_hash,
        violation,
    )


def minimised(failed: Outcome, *, without: Iterable[str] = ()) -> tuple[Outcome, tuple[str, ...]]:
    """Tries to leave out each kind of fault in turn, and leaves out those without which the seed still fails; returns the last
    outcome that failed, and the kinds left out.

    ``without``: kinds that ``failed`` was run without; they are among those left out.
    """
    left_out = tuple(without)
    for kind in failed.kinds:
        outcome = run_seed(failed.scenario, failed.seed, without=(*left_out, kind))
        if outcome.violation:
            failed, left_out = outcome, (*left_out, kind)
    return failed, left_out
