"""Round robin over the queues of a topic that a selector offers, which may be others each time.

A counter modulo their number would do for lists that stay the same. Selectors that offer other queues each time could fall in step
with a counter and get the same queue for ever; so each queue's last turn is kept, and the one whose turn is longest ago is next.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from rmq_protocol.message import MessageQueue

__all__ = ["Turns"]

TOPICS_KEPT: Final = 1024
QUEUES_KEPT: Final = 4096
"""Queues of one topic that are remembered beyond those in the list of the moment."""


class _Topic:
    __slots__ = ("count", "start", "used")

    def __init__(self) -> None:
        self.start = random.randrange(1 << 16)
        self.count = 0
        self.used: dict[MessageQueue, int] = {}


class Turns:
    """Whose turn it is, for each topic, from a random start. Of topics and queues beyond a limit it forgets the oldest."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """One of ``queues``, of which there is at least one and which all belong to one topic."""
        name = queues[0].topic
        topic = self._topics.get(name)
        if topic is None:
            if len(self._topics) >= TOPICS_KEPT:
                self._topics.pop(next(iter(self._topics)), None)
            topic = self._topics[name] = _Topic()
        used, start = topic.used, topic.start % len(queues)
        chosen = min((*queues[start:], *queues[:start]), key=lambda queue: used.get(queue, 0))
        if len(used) >= QUEUES_KEPT + len(queues):
            topic.used = used = {queue: used[queue] for queue in queues if queue in used}
        topic.count += 1
        used[chosen] = topic.count
        return chosen
