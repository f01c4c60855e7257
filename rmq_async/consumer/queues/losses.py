"""Queues whose lock another member got, or may have got, and queues that have lost messages: counted and logged.

``health()`` reports them for a while, of the former the ordered ones.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from rmq_protocol.message import MessageQueue

from ... import machine
from ..held_queue import HeldQueue

logger = logging.getLogger(__name__)

NAMED_FOR: Final = 300.0
MOST_NAMED: Final = 64
SKIPPED_FOR: Final = 600.0
"""Seconds for which ``health()`` reports a queue that went on at another offset because it has lost messages."""


class LostQueue(NamedTuple):
    """A queue that was lost.

    Attributes:
        at: Monotonic time.
        running: Number of its messages that were in calls.
    """

    at: float
    running: int


class LostQueues:
    """The queues whose lock another member got, or may have got.

    Attributes:
        count: Queues that were lost since the start.
    """

    def __init__(self) -> None:
        self.count = 0
        self._ordered: dict[MessageQueue, LostQueue] = {}

    def add(self, held: HeldQueue) -> None:
        self.count += 1
        if not held.is_ordered:
            logger.error(
                "the lock of %s is lost: another member may have taken the queue over without a handover, and messages in "
                "handlers may be repeated; look in the log for a blocked event loop or a broker that did not answer",
                held.shown,
            )
            return
        running = len(held.running)
        while len(self._ordered) >= MOST_NAMED:
            del self._ordered[next(iter(self._ordered))]
        self._ordered[held.shown] = LostQueue(machine.monotonic(), running)
        logger.error(
            "the lock of %s, an ordered queue, is lost: its calls, with %d messages, are cancelled, and another member may "
            "have begun the same messages; look in the log for a blocked event loop or a broker that did not answer",
            held.shown,
            running,
        )

    def recent(self) -> dict[MessageQueue, LostQueue]:
        """Return the ordered queues that were lost in the last NAMED_FOR seconds; may be called from any thread."""
        since = machine.monotonic() - NAMED_FOR
        return {queue: each for queue, each in [*self._ordered.items()] if each.at > since}


class Skips:
    """The queues that went on at another offset because they have lost messages."""

    def __init__(self) -> None:
        self._texts: dict[MessageQueue, tuple[float, str]] = {}

    def add(self, shown: MessageQueue, text: str) -> None:
        """Note what has happened to a queue."""
        self._texts.pop(shown, None)
        while len(self._texts) >= MOST_NAMED:
            del self._texts[next(iter(self._texts))]
        self._texts[shown] = machine.monotonic(), text

    def recent(self) -> dict[MessageQueue, str]:
        """Return the texts of the last SKIPPED_FOR seconds by queue; may be called from any thread."""
        since = machine.monotonic() - SKIPPED_FOR
        return {shown: text for shown, (at, text) in [*self._texts.items()] if at > since}
