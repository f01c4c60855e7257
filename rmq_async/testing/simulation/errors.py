"""Errors of a simulation."""


class SimulationError(RuntimeError):
    """A simulation cannot continue, was used in a wrong way, or violates a property that a checker demands.

    The text names the cause.
    """


class Frozen(BaseException):
    """The error that the watchdog raises in the thread of a simulation when a callback does not end or the time does not move.

    It is no ``Exception``, so that code which catches every Exception does not go on.
    """


class DeadEnd(Exception):  # noqa: N818 - becomes a SimulationError that names the tasks
    """The error that the scheduler raises when the time does not move, or no call is left to run."""
