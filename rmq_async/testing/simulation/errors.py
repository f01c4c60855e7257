"""Errors of a simulation."""

from __future__ import annotations

import asyncio

__all__ = ["CallbackError", "DeadEnd", "Frozen", "SimulationError"]


class SimulationError(RuntimeError):
    """A simulation that cannot go on, was used in a wrong way, or violates what a checker demands; the text says what and why."""


class CallbackError(asyncio.CancelledError):
    """Raised by callbacks of a scenario, and reported by the library. No ``Exception``: it stands for errors that end a program,
    and yet the loop goes on."""


class Frozen(BaseException):
    """Raised inside a callback that does not end. No ``Exception``, so that code which catches those does not go on."""


class DeadEnd(Exception):  # noqa: N818 - becomes a SimulationError that names the tasks
    """Raised by the scheduler when time does not move, or nothing is left to run."""
