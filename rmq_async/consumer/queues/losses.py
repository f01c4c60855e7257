"""Counts and logs queues whose lock another member has obtained, or may have obtained, and queues that have lost messages.

``health()`` reports them for a while; of the queues with lost locks, it reports only ordered queues.
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
"""Seconds for which ``health()`` reports a queue that continued at another offset because it had lost messages."""


class LostQueue(NamedTuple):
    """The loss of a queue.

    Attributes:
        at: Monotonic time of the loss.
        running: Number of messages of the queue that were in calls.
    """

    at: float
    running: int


class LostQueues:
    """The queues whose lock another member has obtained, or may have obtained.

    Attributes:
        count: Number of queues that were lost since the start.
    """

    def __init__(self) -> None:
        self.count = 0
        self._ordered: dict[MessageQueue, LostQueue] = {}

    def add(self, held: HeldQueue) -> None:
        self.count += 1
        if not held.is_ordered:
            logger.error(
                "the lock of %s is lost: another member may have taken over the queue without a handover, and messages in "
                "handlers may be repeated; look in the log for a blocked event loop or a broker that did not respond",
                held.shown,
            )
            return
        running = len(held.running)
        while len(self._ordered) >= MOST_NAMED:
            del self._ordered[next(iter(self._ordered))]
        self._ordered[held.shown] = LostQueue(machine.monotonic(), running)
        logger.error(
            "the lock of %s, an ordered queue, is lost: its calls, with %d messages, are cancelled, and another member may "
            "have begun the same messages; look in the log for a blocked event loop or a broker that did not respond",
            held.shown,
            running,
        )

    def recent(self) -> dict[MessageQueue, LostQueue]:
        """Return the ordered queues that were lost in the last NAMED_FOR seconds. May be called from any thread."""
        since = machine.monotonic() - NAMED_FOR
        return {queue: each for queue, each in [*self._ordered.items()] if each.at > since}


class Skips:
    """The queues that continued at another offset because they had lost messages."""

    def __init__(self) -> None:
        self._texts: dict[MessageQueue, tuple[float, str]] = {}

    def add(self, shown: MessageQueue, text: str) -> None:
        """Keep a text about a queue for ``recent``."""
        self._texts.pop(shown, None)
        while len(self._texts) >= MOST_NAMED:
            del self._texts[next(iter(self._texts))]
        self._texts[shown] = machine.monotonic(), text

    def recent(self) -> dict[MessageQueue, str]:
        """Return the texts of the last SKIPPED_FOR seconds by queue. May be called from any thread."""
        since = machine.monotonic() - SKIPPED_FOR
        return {shown: text for shown, (at, text) in [*self._texts.items()] if at > since}
