"""Decides what happens to rows after a failed send. This module reads no clock and sends no query."""

from __future__ import annotations

from typing import Final

from rmq_protocol.constants import ResponseCode
from rmq_protocol.errors import InvalidMessageError

from .._backoff import pause_after
from .._text import printable
from ..errors import MessageIllegalError, SendError

LONGEST_PAUSE: Final = 15.0
"""Longest pause between two attempts of one message, in seconds."""
LONGEST_PROBE_PAUSE: Final = 5.0
"""Longest pause between two trials of a failed topic (``FailedTopics``), in seconds."""
FORGOTTEN_AFTER: Final = 300.0
"""Seconds without a failure after which a failed topic counts as usable again."""
_LONGEST_ERROR: Final = 1000
_TOPICS: Final = 10_000
"""Number of topics above which the times of the last successes are forgotten."""


def given_up(error: BaseException) -> bool:
    """Return whether the message itself was refused, so that later attempts would fail too."""
    last = error.__cause__ if isinstance(error, SendError) and error.__cause__ is not None else error
    return isinstance(last, InvalidMessageError | MessageIllegalError) or (
        getattr(last, "code", None) == ResponseCode.MESSAGE_ILLEGAL
    )


def pause_before(attempt: int, poll_interval: float, luck: float) -> float:
    """Return the pause in seconds before attempt number ``attempt`` (2 is the first one after a failure).

    Args:
        luck: A random number, as for ``pause_after``.
    """
    return pause_after(attempt - 1, max(poll_interval, 0.01), LONGEST_PAUSE, luck)


def error_text(error: BaseException) -> str:
    """Return the text for the column ``last_error``."""
    return f"{type(error).__name__}: {printable(error, _LONGEST_ERROR)}"


class FailedTopics:
    """The topics whose last sends failed.

    Normal claims leave these topics out, so that other topics do not wait behind them. At intervals, a trial claims a few rows
    of such a topic. A successful send removes the topic from the set. Times are monotonic seconds.
    """

    def __init__(self, poll_interval: float) -> None:
        self._poll_interval = max(poll_interval, 0.01)
        self._troubles: dict[str, _Trouble] = {}
        self._succeeded: dict[str, float] = {}

    def __contains__(self, topic: object) -> bool:
        return topic in self._troubles

    def topics(self) -> list[str]:
        return list(self._troubles)

    def failed(self, topic: str, began: float, now: float) -> None:
        """Record a failed send that began at ``began``, unless a send to the topic has succeeded since."""
        # A success in the meantime shows that the cause is a single broker or message. Several sends that fail together
        # lengthen the pause only once.
        if self._succeeded.get(topic, -1.0) >= began:
            return
        trouble = self._troubles.setdefault(topic, _Trouble())
        trouble.failed = now
        if began >= trouble.looked:
            trouble.failures += 1
            trouble.looked, trouble.next = now, now + pause_after(trouble.failures, self._poll_interval, LONGEST_PROBE_PAUSE)

    def succeeded(self, topic: str, now: float) -> None:
        if len(self._succeeded) > _TOPICS and topic not in self._succeeded:
            self._succeeded.clear()
        self._succeeded[topic] = now
        self._troubles.pop(topic, None)

    def due(self, now: float) -> list[str]:
        """Return the topics whose trial is due, and plan the next trial of each of them.

        Remove topics without a failure for FORGOTTEN_AFTER seconds.
        """
        old = [topic for topic, trouble in self._troubles.items() if now - trouble.failed > FORGOTTEN_AFTER]
        for topic in old:
            del self._troubles[topic]
        found = [topic for topic, trouble in self._troubles.items() if trouble.next <= now]
        for topic in found:
            trouble = self._troubles[topic]
            trouble.looked, trouble.next = now, now + pause_after(trouble.failures, self._poll_interval, LONGEST_PROBE_PAUSE)
        return found

    def next_due(self) -> float | None:
        return min((trouble.next for trouble in self._troubles.values()), default=None)


class _Trouble:
    __slots__ = ("failed", "failures", "looked", "next")

    def __init__(self) -> None:
        self.failures = 0
        self.failed = self.looked = self.next = 0.0
