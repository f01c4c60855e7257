"""The paused queues of a member. A pause of a single queue ends with its ownership."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .held_queue import HeldQueue
from .subscription import Subscription

__all__ = ["Pauses"]


class Pauses:
    """The pauses of topics and queues.

    ``all``: whether everything is paused. ``topics``: on the wire, paused with all their queues, also those that the member
    takes later.
    """

    def __init__(self) -> None:
        self.all = False
        self.topics: set[str] = set()

    def covers(self, held: HeldQueue) -> bool:
        """Returns whether a queue is paused."""
        return self.all or held.paused or held.queue.topic in self.topics

    def among(self, subscriptions: Mapping[str, Subscription]) -> frozenset[Subscription]:
        """Returns the subscriptions, by topic on the wire, whose topics are paused with all their queues."""
        return frozenset([each for topic, each in subscriptions.items() if self.all or topic in self.topics])

    def pause(self, topics: Iterable[str], queues: Iterable[HeldQueue]) -> None:
        self.topics.update(topics)
        for held in queues:
            held.paused = True

    def resume(self, topics: Iterable[str], queues: Iterable[HeldQueue]) -> None:
        self.topics.difference_update(topics)
        for held in queues:
            held.paused = False
