"""Simulated processes in one thread, under a virtual clock: the event loops and the scheduler of their calls."""

from __future__ import annotations

from .errors import SimulationError as SimulationError
from .loop import SimulatedLoop as SimulatedLoop
from .running import run_task as run_task
from .scheduler import Scheduler as Scheduler

__all__ = ["Scheduler", "SimulatedLoop", "SimulationError", "run_task"]
