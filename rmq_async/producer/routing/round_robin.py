"""Round robin over lists of queues that differ from call to call, as selectors pass them to ``select_best``.

With a constant list, a counter modulo its length would do. With changing lists a counter may always meet the same queue; so the
last turn of each queue is kept, and the least recently used queue is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rmq_protocol.message import MessageQueue

from ... import machine

TOPICS_KEPT: Final = 1024
"""Maximum number of topics that are remembered; the oldest is dropped for a new one."""
QUEUES_KEPT: Final = 4096
"""Maximum number of queues of one topic that are remembered in addition to the current list."""


class _Topic:
    def __init__(self) -> None:
        self.start = machine.random.randrange(1 << 16)
        self.count = 0
        self.used: dict[MessageQueue, int] = {}


class RoundRobin:
    """The last turns of each topic's queues, from a random start; bounded in topics and queues."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def next(self, queues: Sequence[MessageQueue]) -> MessageQueue:
        """Return the least recently used of ``queues``: at least one, all of one topic."""
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
