"""Exceptions by which a handler chooses an outcome, and the outcomes of a message."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from rmq_protocol.errors import shown

from .._functions import handler_name

__all__ = ["DeadLetter", "Outcome", "RetryLater", "check_returned", "outcome_in"]


class RetryLater(Exception):  # noqa: N818 - not an error
    """An exception that a handler raises to have its message delivered again. It counts as an attempt and is logged without a
    traceback.

    ``delay``: seconds, a negative number as 0; None for the delay of the attempt (``Retry.delays``). The broker delays by
    levels (1 s, 5 s, 10 s, 30 s, 1 min ... 2 h): the next level at or above ``delay`` is used, 2 h for more. Ordered messages
    (in ``order="key"`` all but those for which ``key`` returns None), and those of broadcast, wait for ``delay`` exactly, up to
    ``max_hold``; with ``mode="pop"`` a message waits for ``delay`` (2 h at most) and up to a tenth more.
    """

    def __init__(self, delay: float | None = None) -> None:
        super().__init__(delay)
        self.delay = delay

    def __str__(self) -> str:
        delay = getattr(self, "delay", None)  # a class that derives from this one may not set it
        if delay is None:
            return ""
        return f"again in {delay:g} s" if isinstance(delay, int | float) else f"again in {delay!r}"


class DeadLetter(Exception):  # noqa: N818 - not an error
    """An exception that a handler raises to put its message into the group's dead-letter topic at once, without another
    attempt. In broadcast, which has no such topic, the message is given up.

    ``reason``: a text for the log. The request to the broker (CONSUMER_SEND_MSG_BACK) has no field for it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Outcome(Enum):
    """The outcome of a message.

    ``DONE``: it was handled. ``RETRIED``: it is to be delivered again, or repeated in place. ``DEAD_LETTERED``: it was put into
    the group's dead-letter topic, or given up in broadcast. ``ABANDONED``: before the message had another outcome, its queue
    was lost, given up or moved, or the consumer stopped; it is delivered again, unless its queue was moved beyond it.
    """

    DONE = "done"
    RETRIED = "retried"
    DEAD_LETTERED = "dead-lettered"
    ABANDONED = "abandoned"


def check_returned(handler: Callable[..., object], result: object) -> None:
    """Raises TypeError for an exception of this module that a handler returns: its message would be done, against what it says."""
    kind = result if isinstance(result, type) else type(result)
    if issubclass(kind, RetryLater | DeadLetter):
        raise TypeError(f"handler {handler_name(handler)} returned {shown(result)}, which chooses nothing: raise it")


def outcome_in(error: BaseException, dead_letter_on: tuple[type[Exception], ...]) -> BaseException:
    """Returns the exception that chooses an outcome if it is alone in a group, as a TaskGroup raises it; else ``error`` itself."""
    alone = error
    while isinstance(alone, BaseExceptionGroup) and len(alone.exceptions) == 1:
        alone = alone.exceptions[0]
    return alone if isinstance(alone, (RetryLater, DeadLetter, *dead_letter_on)) else error
