"""Errors of a simulation."""

from __future__ import annotations

import asyncio

__all__ = ["CallbackError", "DeadEnd", "Frozen", "SimulationError"]


class SimulationError(RuntimeError):
    """A simulation cannot continue, was used in a wrong way, or violates a property that a checker demands; the text names
    the cause."""


class CallbackError(asyncio.CancelledError):
    """An error that callbacks of a scenario raise, and that the library reports. It is no ``Exception``: it represents
    errors that end a program, and still the loop continues."""


class Frozen(BaseException):
    """The error that the watchdog raises inside a callback that does not end. It is no ``Exception``, so that code which
    catches those does not continue."""


class DeadEnd(Exception):  # noqa: N818 - becomes a SimulationError that names the tasks
    """Time does not move, or no call is left to run; the scheduler raises it."""
