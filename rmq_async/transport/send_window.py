"""The window of one connection: how many sends may be unanswered there at a time, found from the broker's answers.

A broker keeps what it has read in a queue, and answers "busy" to a send that has waited there for 200 ms
(``waitTimeMillsInSendQueue``). How many it serves in that time is not known: a JVM that has just started serves a tenth of
what it serves a minute later. So the window begins small and, while sends wait for it, grows by one with each answer, as TCP's
does, as long as answers come soon. It stops growing when they take longer, and is halved when the broker's queue is long or an
answer says "busy".

One send at a time is timed, from its write to its answer. All this happens only while sends are held back; sends in a window
that has room cost nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf
from typing import Final

FIRST_SIZE: Final = 64
LEAST_SIZE: Final = 8
MOST_SIZE: Final = 1 << 30
SOON: Final = 0.03
"""Seconds in the broker's queue up to which the window grows. It may have grown to four times its size by the time that shows, and
the queue must stay below the broker's 200 ms."""
LONG: Final = 0.1
"""Seconds in the broker's queue from which on the window is halved."""
PAUSE: Final = 0.03
"""Seconds between two reads of answers that are no part of a queue."""


class SendWindow:
    """The size of the window.

    It has no clock and no requests: the caller reports what it saw, with times in seconds (monotonic).

    Attributes:
        size: Sends that may be unanswered.
        timed: Opaque of the send whose answer is timed, 0 if there is none.
    """

    __slots__ = ("_answers", "_began", "_grows", "_narrowed_at", "_nearest", "_paused", "_read_at", "size", "timed")

    def __init__(self) -> None:
        self.size = FIRST_SIZE
        self.timed = 0
        self._grows = True
        self._nearest = inf  # seconds from a write to its answer without a queue: the way there and back
        self._narrowed_at = 0
        self._answers = 0
        self._began = 0.0  # write of the send that is timed
        self._paused = 0.0  # seconds since then in long pauses
        self._read_at = 0.0

    # -- while sends are held back

    def holds(self, answers: int, now: float, written: Iterable[int]) -> None:
        """Begin to hold sends back.

        Args:
            answers: Number of sends that were answered so far.
            written: Opaques of some sends on the wire, the oldest first.
        """
        self._answers, self._read_at = answers, now
        if self._nearest == inf and (oldest := next(iter(written), 0)):
            self.time(oldest, now)  # it has waited least in the broker's queue

    def time(self, opaque: int, now: float) -> None:
        """Time a send that is written now."""
        self.timed, self._began, self._paused = opaque, now, 0.0

    def came(self, answers: int, now: float, unanswered: Container[int]) -> None:
        """Report a read: ``answers`` sends were answered so far, those in ``unanswered`` are not."""
        pause = now - self._read_at
        if pause > PAUSE:
            self._paused += pause
        if self.timed and self.timed not in unanswered:
            self.timed = 0
            self.measured(now - self._began, self._paused)
        self.answered(answers - self._answers)
        self._answers, self._read_at = answers, now

    # -- what was seen

    def answered(self, number: int) -> None:
        """Report ``number`` answers that came while sends waited for the window."""
        if self._grows:
            self.size = min(self.size + number, MOST_SIZE)

    def measured(self, seconds: float, paused: float = 0.0) -> None:
        """Report the seconds from the write of a send to its answer.

        Args:
            paused: Seconds of these in long pauses without any answer. A queue makes none: they are those of a loop that was
                blocked, of the whole broker, or of a way that is long for what is on it.
        """
        self._nearest = min(self._nearest, seconds)
        queued = seconds - max(self._nearest, paused)
        self._grows = queued < SOON
        if queued < LONG:
            return
        if self.size > LEAST_SIZE:
            self.size = max(LEAST_SIZE, self.size // 2)
        else:  # so few make no queue: the way to the broker has become longer
            self._nearest = seconds

    def busy(self, sequence: int, newest: int, unanswered: int) -> None:
        """Report the answer "busy" to the send ``sequence``, with ``unanswered`` sends on the wire before it came.

        Args:
            newest: The send that was written last. Those up to it were written before the broker's answer showed anything, so
                they do not halve the window again.
        """
        if sequence > self._narrowed_at:
            self._narrowed_at = newest
            self._grows = False
            self.timed = 0
            self.size = max(LEAST_SIZE, min(self.size, unanswered) // 2)
