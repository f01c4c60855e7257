"""Errors of a simulation."""


class SimulationError(RuntimeError):
    """Raised if a simulation cannot continue, was used incorrectly, or violates a property that a checker verifies.

    The message names the cause.
    """


class Frozen(BaseException):
    """The error that the watchdog raises in the simulation's thread when a callback does not end or virtual time does not advance.

    It is not an ``Exception``, so that code that catches every Exception does not continue.
    """


class DeadEnd(Exception):  # noqa: N818 - becomes a SimulationError that names the tasks
    """The error that the scheduler raises when virtual time does not advance, or no call is left to run."""
