"""Limits how many sends on one connection may be unanswered at a time. This limit, the window, adapts to the broker's responses.

A broker keeps the requests that it has read in a queue, and responds "busy" to a send that has waited there for 200 ms
(``waitTimeMillsInSendQueue``). The number of sends that it handles in that time is unknown: a JVM that has just started handles a
tenth of the sends that it handles a minute later. Therefore the window begins small. While sends wait for the window and responses
arrive soon, it grows by one with each response, like the window of TCP. It stops growing when responses take longer, and it is
halved when the wait in the broker's queue is long or a response says "busy".

One send at a time is timed, from its write to its response. The window changes only while sends are held back; sends that need not
wait for it cost nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf
from typing import Final

FIRST_SIZE: Final = 64
LEAST_SIZE: Final = 8
MOST_SIZE: Final = 1 << 30
SOON: Final = 0.03
"""The window grows while sends wait less than this many seconds in the broker's queue. By the time that a longer wait is measured,
the window may have grown to four times its size, and the wait must still stay below the broker's 200 ms."""
LONG: Final = 0.1
"""The window is halved if sends wait at least this many seconds in the broker's queue."""
PAUSE: Final = 0.03
"""A pause of more than this many seconds between two reads of responses is not caused by the broker's queue."""


class SendWindow:
    """The size of the window of one connection.

    This class has no clock and no requests: the caller reports events with times in seconds (monotonic).

    Attributes:
        size: Maximum number of unanswered sends.
        timed: Opaque of the send whose response is timed; 0 if there is none.
    """

    __slots__ = ("_answers", "_began", "_grows", "_narrowed_at", "_nearest", "_paused", "_read_at", "size", "timed")

    def __init__(self) -> None:
        self.size = FIRST_SIZE
        self.timed = 0
        self._grows = True
        self._nearest = inf  # seconds from a write to its response without a queue: the round trip
        self._narrowed_at = 0
        self._answers = 0
        self._began = 0.0  # when the timed send was written
        self._paused = 0.0  # sum of the long pauses since then, in seconds
        self._read_at = 0.0

    # -- while sends are held back

    def holds(self, answers: int, now: float, written: Iterable[int]) -> None:
        """Report that sends are held back from now on.

        Args:
            answers: Number of sends that have been answered so far.
            written: Opaques of some unanswered sends; the oldest comes first.
        """
        self._answers, self._read_at = answers, now
        if self._nearest == inf and (oldest := next(iter(written), 0)):
            self.time(oldest, now)  # the oldest send has waited least in the broker's queue

    def time(self, opaque: int, now: float) -> None:
        """Start timing the send ``opaque``, which is written now."""
        self.timed, self._began, self._paused = opaque, now, 0.0

    def came(self, answers: int, now: float, unanswered: Container[int]) -> None:
        """Report that responses were read from the connection.

        Args:
            answers: Number of sends that have been answered so far.
            unanswered: Opaques of the requests that are not answered yet.
        """
        pause = now - self._read_at
        if pause > PAUSE:
            self._paused += pause
        if self.timed and self.timed not in unanswered:
            self.timed = 0
            self.measured(now - self._began, self._paused)
        self.answered(answers - self._answers)
        self._answers, self._read_at = answers, now

    # -- events

    def answered(self, number: int) -> None:
        """Report ``number`` responses that arrived while sends waited for the window."""
        if self._grows:
            self.size = min(self.size + number, MOST_SIZE)

    def measured(self, seconds: float, paused: float = 0.0) -> None:
        """Report the seconds from the write of a send to its response.

        Args:
            paused: The part of these seconds that passed in long pauses without any response. The broker's queue does not cause
                such pauses; a blocked loop, a broker that pauses, or a network with a long delay does.
        """
        self._nearest = min(self._nearest, seconds)
        queued = seconds - max(self._nearest, paused)
        self._grows = queued < SOON
        if queued < LONG:
            return
        if self.size > LEAST_SIZE:
            self.size = max(LEAST_SIZE, self.size // 2)
        else:  # so few sends do not cause a queue, so the round trip to the broker has become longer
            self._nearest = seconds

    def busy(self, sequence: int, newest: int, unanswered: int) -> None:
        """Report that the broker responded "busy" to the send with the position ``sequence`` in the order of writing.

        Args:
            newest: The position of the last send that was written. The window is not halved again for any send up to this one,
                because it was written before this response arrived.
            unanswered: Number of unanswered sends before the response arrived.
        """
        if sequence > self._narrowed_at:
            self._narrowed_at = newest
            self._grows = False
            self.timed = 0
            self.size = max(LEAST_SIZE, min(self.size, unanswered) // 2)
